//! Every setting of the receiver: checked before anything is opened, refused with one line that names it.

use std::time::Duration;

use tower_inbox::envelope::Sequence;
use tower_inbox::preset::Preset;

use crate::shared::args::{Cli, Opt, Settings as Given, Wrong};
use crate::shared::values;

/// Of a delivery, where the producer waits longer than that.
const BUDGET: Duration = Duration::from_secs(7);
/// What a network needs to bring the answer back before the producer's patience ends.
const MARGIN: Duration = Duration::from_secs(1);
/// A lease must outlive the budget, SQLite's busy timeout of 5 s and a margin of 1 s.
const LEASE_MARGIN: Duration = Duration::from_secs(6);
/// More connections than this are a slip of the finger.
const MOST_CONNECTIONS: u32 = 10_000;

/// The presets and their options, in the order of the documentation. The flag is `--<preset>-secrets`.
const PRESETS: [(&str, &str); 8] = [
    ("kudos", "kudos-secrets"),
    ("standard", "standard-secrets"),
    ("brief", "brief-secrets"),
    ("sequenced", "sequenced-secrets"),
    ("stripe", "stripe-secrets"),
    ("github", "github-secrets"),
    ("shopify", "shopify-secrets"),
    ("slack", "slack-secrets"),
];

const fn secrets(flag: &'static str, env: &'static str, help: &'static str) -> Opt {
    Opt::new(flag, "NEW[,OLD]", help).env(env).secret()
}

pub(crate) const CLI: Cli = Cli {
    name: "receiver",
    about: "A webhook receiver: a ledger behind the inbox. Every event is applied exactly once, and in order.",
    options: &[
        Opt::new("database-url", "URL", "where ledger and inbox are: sqlite:, postgres: or mysql: (mariadb: too); their tables are \
             made at the start")
            .env("DATABASE_URL")
            .default("sqlite://receiver.db?mode=rwc")
            .secret(),
        Opt::new("listen", "ADDR", "address and port; port 0 takes a free one, printed as `listening on http://ADDR`")
            .env("LISTEN")
            .default("127.0.0.1:3000"),
        secrets("kudos-secrets", "KUDOS_SECRETS", "mounts /webhooks/kudos; one or two secrets"),
        secrets("standard-secrets", "STANDARD_SECRETS", "mounts /webhooks/standard; one or two secrets: whsec_ and base64"),
        secrets("brief-secrets", "BRIEF_SECRETS", "mounts /webhooks/brief; one or two secrets"),
        secrets("sequenced-secrets", "SEQUENCED_SECRETS", "mounts /webhooks/sequenced; one or two secrets"),
        secrets("stripe-secrets", "STRIPE_SECRETS", "mounts /webhooks/stripe; one or two secrets"),
        secrets("github-secrets", "GITHUB_SECRETS", "mounts /webhooks/github, fenced; one or two secrets"),
        secrets("shopify-secrets", "SHOPIFY_SECRETS", "mounts /webhooks/shopify, fenced; one or two secrets"),
        secrets("slack-secrets", "SLACK_SECRETS", "mounts /webhooks/slack; one or two secrets"),
        Opt::new("console-token", "TOKEN", "mounts /console behind this token").env("CONSOLE_TOKEN").secret(),
        Opt::new("delivery-budget", "TIME", "from the first byte of a delivery to its answer [default: 7s, less where a \
             producer has no patience]")
            .env("DELIVERY_BUDGET"),
        Opt::new("recovery-window", "TIME", "parked longer than this is a dead letter [default: the preset's]")
            .env("RECOVERY_WINDOW"),
        Opt::new("retention", "TIME", "applied rows older than this are purged [default: 30d, more where a producer may \
             send its events again for longer]")
            .env("RETENTION"),
        Opt::switch("allow-short-retention", "let the retention go below the preset's floor")
            .env("ALLOW_SHORT_RETENTION"),
        Opt::new("backoff", "TIMES", "the waits of a parked event whose handler fails")
            .env("BACKOFF")
            .default("1s,4s,16s,64s,256s,300s"),
        Opt::new("lease", "TIME", "of a pending event; at least the budget + 6s").env("LEASE").default("30s"),
        Opt::new("pool-size", "N", "database connections").env("POOL_SIZE").default("10"),
        Opt::new("max-in-flight", "N", "deliveries that may hold a connection [default: from the pool]")
            .env("MAX_IN_FLIGHT"),
        Opt::new("body-limit", "SIZE", "the largest body").env("BODY_LIMIT").default("1MiB"),
        Opt::new("park-limit", "N", "events of one source that may be parked or dead")
            .env("PARK_LIMIT")
            .default("10000"),
        Opt::new("tolerance", "TIME", "how old a signed time may be, and how far ahead")
            .env("TOLERANCE")
            .default("5m"),
        Opt::new("first-sequence", "N", "of every stream: 0, 1 or adopt").env("FIRST_SEQUENCE").default("1"),
        Opt::new("adopt-settle", "TIME", "with first-sequence adopt: how long a new stream parks what comes, before it begins at \
             the lowest")
            .env("ADOPT_SETTLE")
            .default("30s"),
        Opt::new("deferred", "PRESETS", "presets that run deferred, comma-separated").env("DEFERRED"),
        Opt::switch(
            "store-responses",
            "answer duplicates with the first answer [default: on for brief, else off]",
        )
        .env("STORE_RESPONSES"),
        Opt::switch("console-actions", "the console may act, not only look").env("CONSOLE_ACTIONS"),
        Opt::switch("demo-faults", "obey `data.fault` of events: for tests alone").env("DEMO_FAULTS"),
    ],
    notes: "\
Routes: POST /webhooks/<preset>, GET /ledger/<account>, GET /healthz, GET /readyz, GET /metrics; /console.
With no secrets at all it makes one for kudos and prints it. Times are such as 500ms, 7s, 5m, 2h, 30d; sizes such as
64KiB, 1MiB. RUST_LOG sets what is logged to standard error [default: info]. SIGTERM and Ctrl-C end it in good order.
A database is compiled in with the feature of its name. Behind PgBouncer in transaction mode end its URL with
?statement-cache-capacity=0.
What the ledger reads is the body's `data`: an object with `account` and `amount`. For stripe it may be in
`data.object`, for slack in `event.data`, and for github and shopify, whose payloads have no such envelope, at the top
of the body (as JSON; their ids are not signed, so that the same content under a new id is fenced).
The console is compiled in with the feature `console`, and mounted at /console with a token.
Without stored answers the duplicates of brief get `already_processed`, as those of every preset do.",
};

/// A preset that is to be mounted.
#[derive(Clone)]
pub(crate) struct Mounted {
    pub(crate) preset: &'static Preset,
    pub(crate) secrets: Vec<String>,
}

/// A back end that is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    #[cfg(feature = "sqlite")]
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MySql,
}

/// Where ledger and inbox are.
pub(crate) struct Database {
    pub(crate) kind: Kind,
    pub(crate) url: String,
}

/// What the receiver runs with.
pub(crate) struct Settings {
    pub(crate) database: Database,
    pub(crate) listen: String,
    /// None: no console.
    #[cfg(feature = "console")]
    pub(crate) console_token: Option<String>,
    #[cfg(feature = "console")]
    pub(crate) console_actions: bool,
    /// None: one random secret for kudos.
    pub(crate) mounted: Vec<Mounted>,
    /// None: [`BUDGET`], or less where a producer has no patience.
    budget: Option<Duration>,
    pub(crate) recovery_window: Option<Duration>,
    /// None: 30 days, or more where a producer may send its events again for longer.
    pub(crate) retention: Option<Duration>,
    pub(crate) allow_short_retention: bool,
    pub(crate) backoff: Vec<Duration>,
    pub(crate) pool_size: u32,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) body_limit: usize,
    /// Nothing: as the preset has it.
    pub(crate) store_responses: Option<bool>,
    pub(crate) lease: Duration,
    /// The presets that run deferred.
    pub(crate) deferred: Vec<String>,
    pub(crate) park_limit: u32,
    pub(crate) tolerance: Duration,
    /// None: where they stand, when they have settled.
    pub(crate) first_sequence: Option<Sequence>,
    pub(crate) settle: Duration,
    pub(crate) demo_faults: bool,
}

impl Settings {
    pub(crate) fn from(given: &Given) -> Result<Self, Wrong> {
        let database = given.one("database-url", database)?;
        let console_token = given.maybe("console-token", values::text)?;
        let console_actions = given.on("console-actions")?;
        // What is silently without effect would be worse.
        if !cfg!(feature = "console") && (console_token.is_some() || console_actions) {
            return Err(Wrong(
                "CONSOLE_TOKEN, CONSOLE_ACTIONS: need the feature console, as in `cargo run --features console --example receiver`"
                    .to_owned(),
            ));
        }
        let budget = given.maybe("delivery-budget", values::some_time)?;
        let lease = given.one("lease", values::some_time)?;
        let least = budget.unwrap_or(BUDGET).saturating_add(LEASE_MARGIN);
        if lease < least {
            return Err(Wrong(format!(
                "LEASE: {lease:?} is too short for the DELIVERY_BUDGET: at least {least:?}"
            )));
        }
        Ok(Self {
            database,
            #[cfg(feature = "console")]
            console_token,
            #[cfg(feature = "console")]
            console_actions,
            listen: given.one("listen", address)?,
            mounted: mounted(given)?,
            budget,
            recovery_window: given.maybe("recovery-window", values::some_time)?,
            retention: given.maybe("retention", values::some_time)?,
            allow_short_retention: given.on("allow-short-retention")?,
            backoff: given.one("backoff", values::durations)?,
            pool_size: given.one("pool-size", values::up_to(MOST_CONNECTIONS))?,
            max_in_flight: given
                .maybe("max-in-flight", values::up_to(1_000_000_u32))?
                .map(|deliveries| deliveries as usize),
            body_limit: given.one("body-limit", |text| match values::size(text)? {
                0 => Err("at least 1 byte".to_owned()),
                bytes => Ok(bytes),
            })?,
            store_responses: given.maybe("store-responses", values::boolean)?,
            lease,
            deferred: given.maybe("deferred", presets)?.unwrap_or_default(),
            park_limit: given.one("park-limit", values::count)?,
            tolerance: given.one("tolerance", values::some_time)?,
            first_sequence: given.one("first-sequence", first_sequence)?,
            settle: given.one("adopt-settle", values::some_time)?,
            demo_faults: given.on("demo-faults")?,
        })
    }
}

impl Settings {
    pub(crate) fn budget_of(&self, preset: &Preset) -> Duration {
        self.budget
            .unwrap_or(BUDGET.min(preset.patience.saturating_sub(MARGIN)))
    }

    /// No delivery takes longer.
    pub(crate) fn longest_budget(&self) -> Duration {
        self.budget.unwrap_or(BUDGET)
    }
}

/// Names of presets that this receiver may mount; an empty list is none.
fn presets(text: &str) -> Result<Vec<String>, String> {
    let names = text.split(',').map(str::trim);
    let names: Vec<_> = names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    match names
        .iter()
        .find(|name| !PRESETS.iter().any(|(known, _)| known == name))
    {
        None => Ok(names),
        Some(unknown) => Err(format!("there is no preset {unknown:?} to run deferred")),
    }
}

fn missing(what: &str) -> Wrong {
    Wrong(format!("{what} is not in this version"))
}

fn mounted(given: &Given) -> Result<Vec<Mounted>, Wrong> {
    let mut mounted = Vec::new();
    for (name, flag) in PRESETS {
        let Some(secrets) = given.maybe(flag, values::secrets)? else {
            continue;
        };
        match Preset::named(name) {
            Some(preset) => mounted.push(Mounted { preset, secrets }),
            None => return Err(missing(&format!("the preset {name}"))),
        }
    }
    Ok(mounted)
}

fn database(url: &str) -> Result<Database, String> {
    let scheme = url.split(':').next().unwrap_or_default();
    let (kind, feature) = match scheme {
        "sqlite" => (compiled::SQLITE, "sqlite"),
        "postgres" | "postgresql" => (compiled::POSTGRES, "postgres"),
        "mysql" | "mariadb" => (compiled::MYSQL, "mysql"),
        _ => {
            return Err(
                "not a URL that begins with sqlite:, postgres:, mysql: or mariadb:".to_owned(),
            );
        }
    };
    let kind = kind.ok_or_else(|| format!("{scheme}: needs the feature {feature}"))?;
    let url = url.to_owned();
    Ok(Database { kind, url })
}

/// The back ends, as far as their features are on.
mod compiled {
    use super::Kind;

    macro_rules! compiled {
        ($name:ident, $feature:literal, $kind:ident) => {
            #[cfg(feature = $feature)]
            pub(super) const $name: Option<Kind> = Some(Kind::$kind);
            #[cfg(not(feature = $feature))]
            pub(super) const $name: Option<Kind> = None;
        };
    }
    compiled!(SQLITE, "sqlite", Sqlite);
    compiled!(POSTGRES, "postgres", Postgres);
    compiled!(MYSQL, "mysql", MySql);
}

fn address(text: &str) -> Result<String, String> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .map(|(_, port)| port);
    match port.map(str::parse::<u16>) {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err("not an address and a port, such as 127.0.0.1:3000".to_owned()),
    }
}

/// None: adopt.
fn first_sequence(text: &str) -> Result<Option<Sequence>, String> {
    match text {
        "0" => Ok(Sequence::new(0)),
        "1" => Ok(Sequence::new(1)),
        "adopt" => Ok(None),
        _ => Err("0, 1 or adopt".to_owned()),
    }
}
