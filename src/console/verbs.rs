//! What operators decide. Each is done by the library's own operations, which are safe to repeat and to race.

use super::asked::{Answer, Fault};
use super::caller::Caller;
use super::show::count;
use crate::error::OperatorError;
use crate::operator::{Moved, Seen};
use crate::store::Backend;

/// A stream, and the cursor by which somebody decided.
struct Decided {
    source: String,
    id: String,
    seen: Seen,
    reason: String,
}

impl Decided {
    fn of<DB: Backend>(caller: &Caller<DB>) -> Result<Self, Fault> {
        Ok(Self {
            source: caller.field("source")?.to_owned(),
            id: caller.field("id")?.to_owned(),
            seen: Seen {
                next: caller.number("seen_next")?,
                generation: caller.number("seen_generation")?,
            },
            reason: caller.reason()?.to_owned(),
        })
    }
}

fn moved<DB: Backend>(
    caller: &Caller<DB>,
    decided: &Decided,
    came: Result<Moved, OperatorError>,
    what: &str,
) -> Result<Answer, Fault> {
    let to = caller.link(
        "/stream",
        &[("source", &decided.source), ("id", &decided.id)],
    );
    let said = came.map(|moved| match moved.changed {
        true => format!(
            "{what} The stream waits for {} now.",
            count(moved.cursor.next)
        ),
        false => "It was so already: nothing was changed.".to_owned(),
    });
    caller.done(to, said)
}

pub(super) async fn skip<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let decided = Decided::of(&caller)?;
    let (first, last) = (caller.number("first")?, caller.number("last")?);
    let Decided {
        source,
        id,
        seen,
        reason,
    } = &decided;
    let came = caller
        .operator
        .skip_range(source, id, first..=last, *seen, reason)
        .await;
    let what = match first == last {
        true => format!("Skipped {}.", count(first)),
        false => format!("Skipped {} to {}.", count(first), count(last)),
    };
    moved(&caller, &decided, came, &what)
}

pub(super) async fn fast_forward<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let decided = Decided::of(&caller)?;
    let to = caller.number("to")?;
    let Decided {
        source,
        id,
        seen,
        reason,
    } = &decided;
    let came = caller
        .operator
        .fast_forward(source, id, to, *seen, reason)
        .await;
    moved(
        &caller,
        &decided,
        came,
        &format!("Skipped everything below {}.", count(to)),
    )
}

pub(super) async fn reset<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let decided = Decided::of(&caller)?;
    let first = caller.number("first")?;
    let Decided {
        source,
        id,
        seen,
        reason,
    } = &decided;
    let came = caller
        .operator
        .reset(source, id, first, *seen, reason)
        .await;
    moved(
        &caller,
        &decided,
        came,
        "Reset: a new generation has begun.",
    )
}

/// The source and the id of the event that an action is about, and why.
fn about<DB: Backend>(caller: &Caller<DB>) -> Result<[&str; 3], Fault> {
    Ok([
        caller.field("source")?,
        caller.field("id")?,
        caller.reason()?,
    ])
}

/// What came of an action on an event.
fn done<DB: Backend>(
    caller: &Caller<DB>,
    came: Result<bool, OperatorError>,
    [did, was_so]: [&str; 2],
) -> Result<Answer, Fault> {
    let (source, id) = (caller.field("source")?, caller.field("id")?);
    let to = caller.link("/event", &[("source", source), ("id", id)]);
    let said = came.map(|changed| if changed { did } else { was_so }.to_owned());
    caller.done(to, said)
}

pub(super) async fn replay<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let [source, id, reason] = about(&caller)?;
    let came = caller.operator.replay(source, id, reason).await;
    let did = "Replayed: the worker applies it when its turn is there.";
    done(
        &caller,
        came,
        [did, "It waits already, or is applied: nothing was changed."],
    )
}

pub(super) async fn try_now<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let [source, id, reason] = about(&caller)?;
    let came = caller.operator.try_now(source, id, reason).await;
    let did = "It is due: the worker tries it at once.";
    let was_so = "It waits for no time (it is due already, or its turn is still to come), or is applied: nothing was changed.";
    done(&caller, came, [did, was_so])
}

pub(super) async fn replay_out_of_order<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let [source, id, reason] = about(&caller)?;
    let came = caller
        .operator
        .replay_out_of_order(source, id, reason)
        .await;
    let did = "Replayed out of its order: the worker applies it as soon as it can.";
    done(
        &caller,
        came,
        [
            did,
            "It is on its way already, or applied: nothing was changed.",
        ],
    )
}

pub(super) async fn release<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let [source, id, reason] = about(&caller)?;
    let actor = caller.actor.name();
    let came = caller
        .inbox()
        .release_fenced(source, id, actor, reason)
        .await;
    let did = "Released: the worker hands it to the handler.";
    let was_so =
        "The fence does not hold it any more, or its request was not kept: nothing was changed.";
    done(&caller, came, [did, was_so])
}

pub(super) async fn discard<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let [source, id, reason] = about(&caller)?;
    let came = caller.operator.discard(source, id, reason).await;
    let did = "Discarded: it is never applied.";
    done(
        &caller,
        came,
        [did, "It is discarded already: nothing was changed."],
    )
}
