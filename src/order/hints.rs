//! What processes tell each other: something was stored that another one may have to look for.
//!
//! Where one process parks an event and another one applies what it waited for, the second knows nothing of it, and the
//! worker's next look finds it. On PostgreSQL the second is told: by NOTIFY, in a statement of its own on the maintenance
//! connection, never in a delivery's transaction, since the server takes one lock for all commits that notify. It is a
//! hint: a lost one costs a poll.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::worker::{self, Work};
use crate::shared::Shared;
use crate::store::Backend;

/// Between two statements that tell.
const GATHER: Duration = Duration::from_millis(50);
/// Streams and events of one statement; of more, the others are told by their source alone.
const MOST: usize = 64;
/// Bytes of one hint, far below the server's 8,000.
const LONGEST: usize = 1_000;
/// Hints that were heard and wait: more are lost.
const BACKLOG: usize = 1_024;
/// Between two attempts to listen.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// To take leave of the server.
const LEAVE: Duration = Duration::from_secs(2);

/// This process's side.
pub(crate) struct Hints {
    /// Unique per start of an inbox.
    owner: String,
    gathered: Mutex<Gathered>,
    stop: watch::Sender<bool>,
}

#[derive(Default)]
struct Gathered {
    work: HashSet<Work>,
    /// Somebody will send what is gathered.
    sending: bool,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            owner: format!("{:016x}", fastrand::u64(..)),
            gathered: Mutex::default(),
            stop: watch::Sender::new(false),
        }
    }
}

impl Hints {
    /// Closes the listening connection, and waits a moment for that.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        let _ = timeout(LEAVE, self.stop.closed()).await;
    }

    /// Each hint is `[owner, kind, source, id]`, the kind `s` of a stream and `e` of an event; without an id it is about
    /// the source alone.
    fn take(&self) -> Vec<String> {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        if gathered.work.is_empty() {
            gathered.sending = false;
            return Vec::new();
        }
        let work = std::mem::take(&mut gathered.work);
        let mut hints = HashSet::new();
        for (n, work) in work.iter().enumerate() {
            let (kind, source, id) = match work {
                Work::Stream {
                    source,
                    correlation_id: id,
                }
                | Work::Settling {
                    source,
                    correlation_id: id,
                } => ("s", source, &**id),
                Work::Event { source, event_id } => ("e", source, &**event_id),
            };
            let id = if n < MOST { id } else { "" };
            let hint = serde_json::to_string(&[&self.owner, kind, source, id]).unwrap_or_default();
            if (1..=LONGEST).contains(&hint.len()) {
                hints.insert(hint);
            }
        }
        hints.into_iter().collect()
    }

    /// What another process has said; nothing if it was this one, or is not to be understood.
    fn read(&self, hint: &str) -> Option<(String, Option<Work>)> {
        let [owner, kind, source, id]: [String; 4] = serde_json::from_str(hint).ok()?;
        if owner == self.owner {
            return None;
        }
        let work = match kind.as_str() {
            _ if id.is_empty() => None,
            "s" => Some(Work::Stream {
                source: source.as_str().into(),
                correlation_id: id.into(),
            }),
            "e" => Some(Work::Event {
                source: source.as_str().into(),
                event_id: id.into(),
            }),
            _ => return None,
        };
        Some((source, work))
    }
}

/// Tells the other processes, soon, that there may be something for them. To be called after the commit.
pub(crate) fn tell<DB: Backend>(shared: &Shared<DB>, work: Work) {
    if !(DB::NOTIFIES && shared.sql.named) {
        return;
    }
    let hints = &shared.hints;
    let mut gathered = hints
        .gathered
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    gathered.work.insert(work);
    if std::mem::replace(&mut gathered.sending, true) {
        return;
    }
    drop(gathered);
    let (hints, watch) = (Arc::clone(hints), shared.watch.clone());
    shared.runtime.spawn(async move {
        // The first one goes out at once, and those that come meanwhile together.
        loop {
            let gathered = hints.take();
            if gathered.is_empty() {
                return;
            }
            watch.notify(gathered);
            sleep(GATHER).await;
        }
    });
}

/// Listens until the inbox is shut down, or gone.
pub(crate) fn listen<DB: Backend>(shared: &Arc<Shared<DB>>) {
    if !(DB::NOTIFIES && shared.sql.named) {
        return;
    }
    let (sender, heard) = mpsc::channel(BACKLOG);
    let stop = shared.hints.stop.subscribe();
    shared.runtime.spawn(hear(Arc::downgrade(shared), heard));
    let (weak, sql) = (Arc::downgrade(shared), shared.sql.clone());
    let pool = shared.pool.clone();
    shared.runtime.spawn(async move {
        let mut pause = AGAIN;
        while !*stop.borrow() && stop.has_changed().is_ok() && weak.strong_count() > 0 {
            let since = tokio::time::Instant::now();
            match DB::listen(&pool, &sql, stop.clone(), &sender).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "cannot listen to other processes"),
            }
            if since.elapsed() > AGAIN_AT_MOST {
                pause = AGAIN;
            }
            let mut stopped = stop.clone();
            tokio::select! {
                () = sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)) => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
            pause = (pause * 2).min(AGAIN_AT_MOST);
        }
    });
}

async fn hear<DB: Backend>(shared: Weak<Shared<DB>>, mut heard: mpsc::Receiver<String>) {
    while let Some(hint) = heard.recv().await {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Some((source, work)) = shared.hints.read(&hint) else {
            continue;
        };
        let state = shared.source(&source).cloned();
        let state = state.or_else(|| {
            let mut alive = shared.tenants.alive().into_iter();
            alive.find(|state| state.name() == source)
        });
        if let Some(state) = state {
            let stream = match &work {
                Some(Work::Stream { correlation_id, .. }) => Some(&**correlation_id),
                _ => None,
            };
            state.room().hint(stream);
        }
        if let Some(work) = work
            && shared.worker.target(&source).is_some()
        {
            worker::wake(&shared, work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(hints: &Hints, work: Work) {
        hints.gathered.lock().unwrap().work.insert(work);
    }

    fn stream(id: &str) -> Work {
        Work::Stream {
            source: "crm".into(),
            correlation_id: id.into(),
        }
    }

    /// §5.14
    #[test]
    fn a_hint_is_understood_by_others_and_ignored_by_its_own_process() {
        let (one, other) = (Hints::default(), Hints::default());
        let work = [
            stream("a \"quoted\" [id], é"),
            Work::Event {
                source: "crm".into(),
                event_id: "evt_1".into(),
            },
        ];
        for work in work {
            gather(&one, work.clone());
            let [hint] = &one.take()[..] else {
                panic!("one hint")
            };
            assert_eq!(one.read(hint), None);
            assert_eq!(other.read(hint), Some(("crm".to_owned(), Some(work))));
        }
        for broken in [
            "",
            "[]",
            "{}",
            r#"["x","s","crm"]"#,
            r#"["x","?","crm","a"]"#,
        ] {
            assert_eq!(other.read(broken), None, "{broken}");
        }
    }

    /// §5.14
    #[test]
    fn a_crowd_of_streams_is_told_by_its_source() {
        let (one, other) = (Hints::default(), Hints::default());
        for n in 0..10 * MOST {
            gather(&one, stream(&n.to_string()));
        }
        let hints = one.take();
        assert_eq!(hints.len(), MOST + 1);
        let whole = hints.iter().filter_map(|hint| other.read(hint));
        assert_eq!(whole.filter(|(_, work)| work.is_none()).count(), 1);
        assert!(one.take().is_empty());
    }
}
