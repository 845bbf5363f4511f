//! Ways to get the protocol wrong. Each is a design that somebody might have chosen.

/// One thing that is done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A worker moves the cursor when it claims an event, not with the event's effect.
    CursorAtClaim,
    /// The transition to *applied* does not demand the lease's token.
    NoFencing,
    /// A worker trusts its lease: it takes no lock, and looks at nothing again.
    LeaseExcludes,
    /// The event's row is looked for first and inserted at the end; between them nothing is locked.
    CheckThenInsert,
    /// The row is inserted as applied in a transaction of its own, before the handler's.
    AppliedAlone,
    /// A duplicate is answered with 200 as soon as the first delivery is at work.
    DuplicateBeforeCommit,
    /// The answer goes out before COMMIT.
    AnswerBeforeCommit,
    /// A connection that is lost in COMMIT is taken for a commit.
    UnknownIsSuccess,
    /// An event is parked by what the cursor said before, without its lock.
    ParkWithoutLock,
    /// The sweep gives up what had expired, without a look at the cursor.
    SweepWithoutLook,
    /// The dead letter of a verdict is written whatever the row says after the rollback.
    RejectWithoutLook,
    /// The memory of commits is kept when the database is another one.
    MemoryOutlivesRestore,
    /// An attempt is counted when it has ended, not before the handler.
    CountedAfterwards,
    /// The worker does what it is told of, and never looks by itself.
    NoPoll,
    /// A worker's transaction locks the cursor first and then the event.
    CursorFirst,
    /// The lease of a process that has ended is never taken over.
    LeaseForEver,
    /// A worker takes a lease that it left behind for somebody else's work.
    OwnLeaseIsTaken,
    /// What was given up for a gap does not come back when the gap is filled.
    GapLettersStay,
    /// A skip sets aside what is stored before it has the cursor, and does not look again.
    SkipLooksOnce,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::CursorAtClaim,
        Self::NoFencing,
        Self::LeaseExcludes,
        Self::CheckThenInsert,
        Self::AppliedAlone,
        Self::DuplicateBeforeCommit,
        Self::AnswerBeforeCommit,
        Self::UnknownIsSuccess,
        Self::ParkWithoutLock,
        Self::SweepWithoutLook,
        Self::RejectWithoutLook,
        Self::MemoryOutlivesRestore,
        Self::CountedAfterwards,
        Self::NoPoll,
        Self::CursorFirst,
        Self::LeaseForEver,
        Self::OwnLeaseIsTaken,
        Self::GapLettersStay,
        Self::SkipLooksOnce,
    ];
}
