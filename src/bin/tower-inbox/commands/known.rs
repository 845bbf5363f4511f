//! A source's name that was mistyped: what is empty because of it must not read as "all clear".

use tower_inbox::Backend;
use tower_inbox::operator::Operator;

use crate::failure::Failure;
use crate::show::quoted;

/// Names that are told to choose from.
const NAMED: usize = 20;

/// Refuses a name of which nothing is known. To be asked where nothing was found of it.
pub(super) async fn source<DB: Backend>(
    operator: &Operator<DB>,
    name: Option<&str>,
) -> Result<(), Failure> {
    let Some(name) = name else { return Ok(()) };
    if operator.knows(name).await? {
        return Ok(());
    }
    let stats = operator.stats().await?;
    // The command may have made one of this name for what it does.
    let known = stats.sources.iter().filter(|source| source.source != name);
    let known = known.take(NAMED);
    let known: Vec<_> = known.map(|source| quoted(&source.source)).collect();
    let known = match known.as_slice() {
        [] => String::new(),
        names => format!("; known are {}", names.join(", ")),
    };
    Err(Failure::refused(format!(
        "nothing is known of source {name}{known}"
    )))
}

/// The event that a person named is there, or the reason why not.
pub(super) async fn event<DB: Backend, T>(
    operator: &Operator<DB>,
    found: Option<T>,
    name: &str,
    event_id: &str,
) -> Result<T, Failure> {
    let none = format!(
        "nothing is known of event {event_id} of source {name}: it never came, or was forgotten"
    );
    there(operator, found, name, none).await
}

/// As [`event`], of a stream.
pub(super) async fn stream<DB: Backend, T>(
    operator: &Operator<DB>,
    found: Option<T>,
    name: &str,
    correlation_id: &str,
) -> Result<T, Failure> {
    let none =
        format!("nothing of stream {correlation_id} of source {name} was applied or parked yet");
    there(operator, found, name, none).await
}

async fn there<DB: Backend, T>(
    operator: &Operator<DB>,
    found: Option<T>,
    name: &str,
    none: String,
) -> Result<T, Failure> {
    if let Some(found) = found {
        return Ok(found);
    }
    source(operator, Some(name)).await?;
    Err(Failure::refused(none))
}
