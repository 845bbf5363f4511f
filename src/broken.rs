//! Deliberately broken variants of this crate: each leaves out one thing that the contract rests on, and the suite must
//! notice (`docs/broken.md` says which test does).
//!
//! They are there with the feature `failpoints` only, which is for tests of this crate, and none is in force unless a
//! test chooses it. Without the feature every question below is a constant.

macro_rules! variants {
    ($($name:ident: $text:literal;)*) => {
        /// What can be broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(feature = "failpoints"),
            allow(dead_code, reason = "some are asked for by their place alone")
        )]
        pub(crate) enum Variant {
            $($name,)*
        }

        #[cfg(feature = "failpoints")]
        impl Variant {
            const ALL: &[(&str, Self)] = &[$(($text, Self::$name),)*];
        }
    };
}

variants! {
    // The transaction and its end.
    MarkApart: "the_mark_is_committed_before_the_work";
    IgnoreRelease: "a_failed_release_is_ignored";
    IgnoreCommitError: "a_refused_commit_is_a_success";
    AnswerWithoutCommit: "an_unknown_commit_is_a_success";
    PoolUnended: "an_open_transaction_goes_back_to_the_pool";
    AbortWithClient: "a_client_that_leaves_takes_its_delivery_with_it";
    BudgetForgotten: "the_budget_is_forgotten";
    // The verdict.
    FailureCommits: "a_failure_commits";
    StatusBeatsStated: "the_status_beats_the_stated_outcome";
    RejectedForgotten: "a_rejected_event_is_not_kept";
    GoneGoesOut: "a_410_goes_out";
    // Duplicates.
    InsertAlwaysWins: "check_then_insert";
    AppliedRunsAgain: "an_applied_event_runs_again";
    IgnoreRows: "a_swap_that_changed_nothing_is_a_success";
    FollowersDuplicate: "a_copy_in_flight_is_a_duplicate";
    FollowersRun: "copies_do_not_queue";
    OtherContentPasses: "other_content_is_a_duplicate";
    MemoryOutlivesItsDatabase: "the_memory_is_never_emptied";
    MemoryOfFailures: "what_was_not_applied_is_remembered";
    IdsFolded: "ids_are_compared_without_case";
    // Order.
    GapIgnored: "a_gap_is_ignored";
    CursorLeftBehind: "the_cursor_does_not_move";
    PlaceTakenTwice: "a_place_is_given_to_two_events";
    LanesOpen: "streams_do_not_queue";
    RangesIgnored: "skipped_ranges_are_ignored";
    SkipUnseen: "a_skip_ignores_the_cursor_that_was_seen";
    DiscardWithoutSkip: "a_discard_skips_nothing";
    OlderVersionRuns: "an_older_version_is_applied";
    // What is stored, and who works on it.
    ParkWithoutBody: "an_event_is_parked_without_its_body";
    ParkUnbounded: "parking_has_no_bound";
    CredentialsStored: "signatures_are_handed_on";
    DueForgotten: "nobody_looks_for_what_is_due";
    GapsStayDead: "a_dead_letter_of_a_gap_stays_dead";
    NoFencing: "a_late_loser_is_not_fenced";
    AttemptUncounted: "an_attempt_is_not_counted_before_it_begins";
    LeaseForEver: "a_lease_is_never_taken_over";
    TriedAtOnce: "a_failed_attempt_is_tried_again_at_once";
    // Batches.
    BatchGoesOn: "a_batch_goes_on_outside_its_transaction";
    GroupGoesOn: "a_group_goes_on_outside_its_transaction";
    GroupToldEarly: "a_group_is_acknowledged_before_its_commit";
    BatchedAgain: "what_a_batch_left_behind_is_batched_again";
    // Keeping.
    PurgeCursors: "the_purge_takes_cursors_too";
    PurgeTheLiving: "the_purge_takes_dead_letters_too";
    ClocksApart: "the_purge_trusts_one_clock";
    // Signatures.
    PrefixSignature: "signatures_are_compared_by_a_prefix";
    FirstSignature: "the_first_signature_alone_is_looked_at";
    FirstSecret: "the_newest_secret_alone_is_looked_at";
    OldPasses: "old_signatures_pass";
    FutureAsPast: "a_time_ahead_is_treated_as_one_behind";
    LookFirst: "the_database_is_asked_before_the_signature";
    LengthBelieved: "the_announced_length_is_believed";
    NoFence: "the_fence_is_open";
}

#[cfg(feature = "failpoints")]
mod on {
    use std::sync::OnceLock;

    use super::Variant;

    static CHOSEN: OnceLock<Variant> = OnceLock::new();

    /// The names of all variants.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Variant::ALL.iter().map(|(name, _)| *name)
    }

    /// Breaks this process's copy of the crate in this way, for good. False if there is no such variant, or another one
    /// was chosen before.
    pub fn choose(name: &str) -> bool {
        let found = Variant::ALL.iter().find(|(known, _)| *known == name);
        found.is_some_and(|(_, variant)| *CHOSEN.get_or_init(|| *variant) == *variant)
    }

    pub(crate) fn is(variant: Variant) -> bool {
        CHOSEN.get() == Some(&variant)
    }

    /// A statement's text as a variant has it: with as many parameters as before.
    pub(crate) fn text(name: &str, text: &str) -> String {
        let (from, to) = match (CHOSEN.get(), name) {
            (Some(Variant::NoFencing), "delete_pending" | "record_attempt" | "postpone") => {
                ("lease_token = ?", "(lease_token = ? OR 1 = 1)")
            }
            (Some(Variant::AttemptUncounted), "claim") => (
                "attempts = attempts + 1, unfinished = unfinished + 1",
                "attempts = attempts, unfinished = unfinished",
            ),
            (Some(Variant::BatchedAgain), "claim_batch") => ("lease_token = 0", "lease_token <= 0"),
            (Some(Variant::BatchGoesOn), "mark_member_by_savepoint")
            | (Some(Variant::GroupGoesOn), "insert_behind") => {
                ("RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox;", "")
            }
            (Some(Variant::BatchGoesOn), "mark_member_by_transaction") => (
                "pg_current_xact_id_if_assigned()::text::bigint = ?",
                "? <> 0",
            ),
            (Some(Variant::RangesIgnored), "range_at" | "ranges_after") => {
                ("WHERE ", "WHERE 1 = 0 AND ")
            }
            (Some(Variant::OlderVersionRuns), "raise_version") => {
                ("version < ?", "1 = 1 OR version < ?")
            }
            (Some(Variant::PurgeTheLiving), "purge_applied" | "stale") => {
                ("state = 1 AND", "state IN (1, 3) AND")
            }
            (Some(Variant::DueForgotten), "due_streams" | "due_events") => {
                ("WHERE ", "WHERE 1 = 0 AND ")
            }
            (Some(Variant::GapsStayDead), "due_streams" | "due_head") => {
                ("(p.reason IS NULL OR p.reason = 1)", "p.reason IS NULL")
            }
            // In the place of another purge, with its parameters.
            (Some(Variant::PurgeCursors), "purge_answers") => (
                text,
                "DELETE FROM {p}cursor WHERE source = ? AND updated_at < ? AND ? > 0",
            ),
            (Some(Variant::PlaceTakenTwice), "yield_slot") => (" AND state = 3", ""),
            _ => return text.to_owned(),
        };
        assert!(text.contains(from), "nothing to break in {name}");
        text.replace(from, to)
    }
}

#[cfg(not(feature = "failpoints"))]
mod off {
    use super::Variant;

    #[inline]
    pub(crate) const fn is(_: Variant) -> bool {
        false
    }

    #[inline]
    pub(crate) const fn text(_: &str, text: &'static str) -> &'static str {
        text
    }
}

#[cfg(not(feature = "failpoints"))]
pub(crate) use off::{is, text};
#[cfg(feature = "failpoints")]
pub use on::{choose, names};
#[cfg(feature = "failpoints")]
pub(crate) use on::{is, text};
