//! Processes that stand still.

use std::fs;
use std::time::{Duration, Instant};

/// Until no thread of it goes on. `kill` returns when the signal is on its way: whoever runs at that moment goes on running
/// for a while, on a busy machine for long enough to answer.
#[track_caller]
pub(crate) fn wait_until_stopped(pid: u32) {
    wait_until_none_is(&['R', 'S', 'D'], pid);
}

/// Until it is gone, or a zombie, which has no memory: nobody may have waited for it.
#[track_caller]
pub(crate) fn wait_until_ended(pid: u32) {
    wait_until_none_is(&['R', 'S', 'D', 'T', 't'], pid);
}

#[track_caller]
fn wait_until_none_is(states: &[char], pid: u32) {
    let start = Instant::now();
    while any_is(states, pid) {
        assert!(start.elapsed() < Duration::from_secs(10), "{pid} goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether one of its threads is in one of these states. Of one that has ended none is.
fn any_is(states: &[char], pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name before it may hold anything, parentheses as well.
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        state.starts_with(states)
    })
}
