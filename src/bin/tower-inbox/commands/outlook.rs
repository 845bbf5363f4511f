//! What becomes of an event that was put back, or is to be tried: it waits for something, or a receiver applies it.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};
use tower_inbox::Backend;
use tower_inbox::operator::{Operator, Reason, State, Story};

use super::letter;
use super::{Office, known, receiver_is_there};
use crate::cli::Global;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::show::{Shown, duration, safe};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Says what comes of it, and waits for that if it is asked to.
pub(super) async fn tell<DB: Backend>(
    office: &Office<DB>,
    source: &str,
    id: &str,
    changed: bool,
    wait: Option<Duration>,
    global: &Global,
) -> Result<ExitCode, Failure> {
    let operator = &office.operator;
    let mut story = known::event(operator, operator.inspect(source, id).await?, source, id).await?;
    let did = if changed {
        "put back"
    } else {
        "so already; nothing was done"
    };
    if let Some(wait) = wait {
        let (until, interrupt) = (Instant::now() + wait, Interrupt::listen());
        while story.letter.state == State::Parked && Instant::now() < until {
            if interrupt.is_asked() {
                return Ok(Interrupt::status());
            }
            sleep(PAUSE).await;
            story = known::event(operator, operator.inspect(source, id).await?, source, id).await?;
        }
    }
    let waits_for = waits_for(&story);
    let outlook = outlook(operator, &story).await?;
    let text = match wait.filter(|_| story.letter.state == State::Parked) {
        Some(wait) => format!("{did}; not applied within {}: {outlook}", duration(wait)),
        None => format!("{did}; {outlook}"),
    };
    let shown = Shown {
        json: json!({
            "changed": changed,
            "state": letter::state(&story.letter),
            "waits_for": waits_for,
        }),
        text: format!("{text}\n"),
    };
    shown.print(global.json);
    let is_bad = wait.is_some() && story.letter.state != State::Applied;
    Ok(ExitCode::from(u8::from(is_bad)))
}

/// The sequence that must be dealt with before its turn is there.
pub(super) fn waits_for(story: &Story) -> Option<i64> {
    let sequence = story
        .letter
        .sequence
        .filter(|_| story.letter.state == State::Parked && !story.letter.out_of_order)?;
    let stream = story.stream.as_ref()?;
    let behind = stream.generation == story.letter.generation && sequence > stream.next;
    behind.then_some(stream.next)
}

async fn outlook<DB: Backend>(operator: &Operator<DB>, story: &Story) -> Result<String, Failure> {
    let letter = &story.letter;
    match letter.state {
        State::Parked => {}
        State::Applied => return Ok("it is applied".into()),
        State::Dead => {
            let reason = letter.reason.map_or("?", Reason::as_str);
            let error = letter.last_error.as_deref();
            let error = error.map_or_else(String::new, |error| format!(", {}", safe(error)));
            let status = letter.last_status;
            let status = status.map_or_else(String::new, |status| format!(", {status}"));
            return Ok(format!("it is a dead letter: {reason}{status}{error}"));
        }
        _ => return Ok(format!("it is {}", letter::state(letter))),
    }
    let by = match receiver_is_there(operator).await? {
        true => "a receiver",
        false => "a receiver, of which none is at work now,",
    };
    let Some(next) = waits_for(story) else {
        let now = operator.clocks().await?.process;
        return Ok(match letter.not_before.filter(|at| *at > now) {
            Some(at) => {
                let wait = duration(at.since(now));
                format!("{by} tries it again in {wait}: tower-inbox events try-now does not wait")
            }
            None => format!("its turn is there: {by} applies it within seconds"),
        });
    };
    if next < 0 {
        return Ok("its stream has not begun: it waits for its lowest sequence to settle".into());
    }
    let head = story.neighbours.iter().find(|near| near.sequence == next);
    let held = match head {
        Some(head) => match head.reason {
            Some(reason) => format!(
                "held by dead letter {} ({})",
                safe(&head.event_id),
                reason.as_str()
            ),
            None => format!("event {}, not applied yet", safe(&head.event_id)),
        },
        None => "not applied yet".into(),
    };
    Ok(format!(
        "it waits behind sequence {next} ({held}), and then {by} applies it"
    ))
}
