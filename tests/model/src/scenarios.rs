//! What is explored: each a small world in which something particular can go wrong.

use crate::Bounds;

/// The exploration's name, and how much of everything there is.
pub type Scenario = (&'static str, Bounds);

/// One after the other in seconds.
pub const SHORT: [Scenario; 6] = [DUPLICATES, STREAM, GAP, POISON, RESTORE, OPERATOR];

/// In minutes.
pub const FULL: [Scenario; 7] = [
    (
        "duplicates, full",
        Bounds {
            copies: [6, 0, 0],
            faults: 3,
            failures: 2,
            rejections: 2,
            ..WORLD
        },
    ),
    (
        "stream, full",
        Bounds {
            faults: 2,
            rejections: 1,
            ..STREAM.1
        },
    ),
    (
        "gap, full",
        Bounds {
            copies: [2, 1, 1],
            failures: 1,
            ..GAP.1
        },
    ),
    (
        "poison, full",
        Bounds {
            copies: [1, 2, 0],
            max_crashes: 3,
            ..POISON.1
        },
    ),
    (
        "restore, full",
        Bounds {
            faults: 1,
            ..RESTORE.1
        },
    ),
    (
        "operator, full",
        Bounds {
            copies: [1, 2, 1],
            ..OPERATOR.1
        },
    ),
    (
        "beside a stream, full",
        Bounds {
            copies: [2, 1, 2],
            failures: 0,
            rejections: 1,
            faults: 0,
            ..STREAM.1
        },
    ),
];

const WORLD: Bounds = Bounds {
    sequences: [None, None, None],
    copies: [0, 0, 0],
    faults: 0,
    failures: 0,
    rejections: 0,
    skips: 0,
    replays: 0,
    restores: 0,
    suspicion: true,
    sweeps: true,
    max_crashes: 2,
    max_attempts: 2,
};

/// One event without a sequence, delivered again and again.
pub const DUPLICATES: Scenario = (
    "duplicates",
    Bounds {
        copies: [4, 0, 0],
        faults: 2,
        failures: 1,
        rejections: 1,
        ..WORLD
    },
);

/// Two events of a stream, each delivered twice.
pub const STREAM: Scenario = (
    "stream",
    Bounds {
        sequences: [Some(1), Some(2), None],
        copies: [2, 2, 0],
        faults: 1,
        failures: 1,
        ..WORLD
    },
);

/// The same with one delivery less, for what is explored again and again.
pub const SMALL_STREAM: Scenario = (
    "small stream",
    Bounds {
        copies: [1, 2, 0],
        ..STREAM.1
    },
);

/// Three events of a stream, in any order: gaps, and what is drained behind them.
pub const GAP: Scenario = (
    "gap",
    Bounds {
        sequences: [Some(1), Some(2), Some(3)],
        copies: [1, 1, 1],
        faults: 1,
        ..WORLD
    },
);

/// More crashes than an event is allowed, and failures beside them.
pub const POISON: Scenario = (
    "poison",
    Bounds {
        sequences: [Some(1), Some(2), None],
        copies: [1, 1, 0],
        faults: 3,
        failures: 1,
        rejections: 1,
        ..WORLD
    },
);

/// A database that is put back to what it was.
pub const RESTORE: Scenario = (
    "restore",
    Bounds {
        sequences: [Some(1), Some(2), None],
        copies: [2, 2, 0],
        restores: 1,
        ..WORLD
    },
);

/// An operator who skips and replays beside all that.
pub const OPERATOR: Scenario = (
    "operator",
    Bounds {
        sequences: [Some(1), Some(2), Some(3)],
        copies: [1, 1, 1],
        rejections: 1,
        skips: 1,
        replays: 1,
        suspicion: false,
        sweeps: false,
        ..WORLD
    },
);
