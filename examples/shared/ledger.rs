//! What the receiver's ledger must say after a plan has been sent: each event exactly once, in order.
//!
//! The ledger may hold entries of other runs. Of them only the balance takes notice, which must be the sum
//! of all entries; everything else is about this plan's events, found by their ids.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time;

use super::client::{Client, Target};
use super::plan::Plan;

/// So many ledgers are asked for at a time.
const AT_ONCE: usize = 16;
/// So many differences are told in words.
const TOLD: usize = 5;

/// `GET /ledger/{account}`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ledger {
    pub(crate) balance: i64,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Entry {
    pub(crate) event_id: String,
    pub(crate) event_type: Option<String>,
    pub(crate) sequence: Option<u64>,
    pub(crate) amount: i64,
}

/// What a plan's events must have left in the ledger, by account.
pub(crate) struct Expectation {
    /// Each account's entries, in the order of their sequences.
    accounts: BTreeMap<String, Vec<Entry>>,
    ordered: bool,
}

/// One thing that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    Missing(String),
    Repeated(String),
    /// Another type, sequence or amount than was sent.
    Altered(String),
    /// Applied after a higher sequence.
    Disordered(String),
    Balance {
        account: String,
        says: i64,
        entries: i128,
    },
    /// The ledger could not be had, or not be read.
    Unreadable(String),
}

/// The result of a check, counted by kind, as it stands in the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Differences {
    pub(crate) missing: usize,
    pub(crate) repeated: usize,
    pub(crate) altered: usize,
    pub(crate) disordered: usize,
    pub(crate) balances: usize,
    pub(crate) unreadable: usize,
    /// The first differences in words.
    pub(crate) told: Vec<String>,
}

impl Expectation {
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut accounts: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for event in &plan.events {
            let entry = Entry {
                event_id: event.id.clone(),
                event_type: Some(event.kind.to_owned()),
                sequence: event.order.as_ref().map(|order| order.sequence),
                amount: event.amount,
            };
            let entries = accounts.entry(event.account.clone()).or_default();
            entries.push(entry);
        }
        Self {
            accounts,
            ordered: plan.traffic.sequenced,
        }
    }

    pub(crate) fn accounts(&self) -> impl Iterator<Item = &str> {
        self.accounts.keys().map(String::as_str)
    }

    /// What this plan's events add to an account.
    pub(crate) fn total(&self, account: &str) -> i64 {
        let entries = self.accounts.get(account).map(Vec::as_slice);
        let entries = entries.unwrap_or_default().iter();
        entries.map(|entry| entry.amount).sum()
    }

    /// Everything in which an account's ledger differs.
    pub(crate) fn compare(&self, account: &str, ledger: &Ledger) -> Vec<Difference> {
        let mut differences = Vec::new();
        let expected = self.accounts.get(account).map(Vec::as_slice);
        let expected = expected.unwrap_or_default();
        let by_id: HashMap<&str, &Entry> = expected
            .iter()
            .map(|entry| (entry.event_id.as_str(), entry))
            .collect();
        let mut seen: HashMap<&str, u32> = HashMap::new();
        let mut highest = None;
        for found in &ledger.entries {
            let Some(entry) = by_id.get(found.event_id.as_str()) else {
                continue;
            };
            let times = seen.entry(&entry.event_id).or_default();
            *times += 1;
            if *times > 1 {
                // Once for each entry too many.
                differences.push(Difference::Repeated(entry.event_id.clone()));
                continue;
            }
            if found != *entry {
                differences.push(Difference::Altered(entry.event_id.clone()));
            }
            if self.ordered && entry.sequence < highest {
                differences.push(Difference::Disordered(entry.event_id.clone()));
            }
            highest = highest.max(entry.sequence);
        }
        let missing = expected
            .iter()
            .filter(|entry| !seen.contains_key(entry.event_id.as_str()));
        differences.extend(missing.map(|entry| Difference::Missing(entry.event_id.clone())));
        let entries = ledger.entries.iter().map(|entry| i128::from(entry.amount));
        let entries: i128 = entries.sum();
        if entries != i128::from(ledger.balance) {
            differences.push(Difference::Balance {
                account: account.to_owned(),
                says: ledger.balance,
                entries,
            });
        }
        differences
    }
}

/// Compares every account's ledger, again and again until it is exact, or until nothing has got better for as
/// long as `patience` (see [`Report::patience`]). `watch` is told the number of differences after each look.
///
/// [`Report::patience`]: super::report::Report::patience
pub(crate) async fn check(
    expectation: &Expectation,
    client: &Client,
    target: &Target,
    patience: Duration,
    mut watch: impl FnMut(usize),
) -> Differences {
    let mut best = usize::MAX;
    let mut better = Instant::now();
    let mut pause = Duration::from_millis(20);
    // An account that is right is not looked at again: nothing more is delivered to it.
    let mut accounts: Vec<&str> = expectation.accounts().collect();
    loop {
        let mut differences = Vec::new();
        let mut differing = Vec::new();
        for batch in accounts.chunks(AT_ONCE) {
            let asked = batch.iter().map(|account| {
                let (client, target, account) =
                    (client.clone(), target.clone(), account.to_string());
                tokio::spawn(async move { ledger(&client, &target, &account).await })
            });
            let asked: Vec<_> = asked.collect();
            for (account, asked) in batch.iter().zip(asked) {
                let found = match asked.await.expect("asking does not panic") {
                    Ok(ledger) => expectation.compare(account, &ledger),
                    Err(why) => vec![Difference::Unreadable(why)],
                };
                if !found.is_empty() {
                    differing.push(*account);
                    differences.extend(found);
                }
            }
        }
        accounts = differing;
        watch(differences.len());
        if differences.len() < best {
            (best, better) = (differences.len(), Instant::now());
        }
        if best == 0 || better.elapsed() >= patience {
            return differences.into_iter().collect();
        }
        time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

async fn ledger(client: &Client, target: &Target, account: &str) -> Result<Ledger, String> {
    let body = client.get(target.ledger(account)).await?;
    serde_json::from_slice(&body).map_err(|error| format!("ledger of {account}: {error}"))
}

impl Differences {
    /// Whether there are none: the ledger is exact.
    pub(crate) fn none(&self) -> bool {
        *self == Self::default()
    }
}

impl FromIterator<Difference> for Differences {
    fn from_iter<I: IntoIterator<Item = Difference>>(differences: I) -> Self {
        let mut found = Self::default();
        for difference in differences {
            *match &difference {
                Difference::Missing(_) => &mut found.missing,
                Difference::Repeated(_) => &mut found.repeated,
                Difference::Altered(_) => &mut found.altered,
                Difference::Disordered(_) => &mut found.disordered,
                Difference::Balance { .. } => &mut found.balances,
                Difference::Unreadable(_) => &mut found.unreadable,
            } += 1;
            if found.told.len() < TOLD {
                found.told.push(difference.to_string());
            }
        }
        found
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(id) => write!(f, "{id} is missing"),
            Self::Repeated(id) => write!(f, "{id} is there more than once"),
            Self::Altered(id) => write!(f, "{id} is not what was sent"),
            Self::Disordered(id) => write!(f, "{id} stands after a higher sequence"),
            Self::Balance {
                account,
                says,
                entries,
            } => write!(
                f,
                "{account} has a balance of {says}, its entries make {entries}"
            ),
            Self::Unreadable(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::plan::Traffic;

    /// A plan of one account and the ledger it must leave.
    fn exact(sequenced: bool) -> (Expectation, Ledger) {
        let plan = Plan::new(Traffic {
            seed: 1,
            events: 9,
            accounts: 1,
            sequenced,
            uuids: false,
            duplicates: 0.0,
            reorder: 0,
        });
        let expectation = Expectation::of(&plan);
        let ledger = Ledger {
            balance: expectation.total("acct-1"),
            entries: expectation.accounts["acct-1"].clone(),
        };
        (expectation, ledger)
    }

    fn foreign() -> Entry {
        Entry {
            event_id: "evt_other".to_owned(),
            event_type: None,
            sequence: Some(1),
            amount: 5,
        }
    }

    #[test]
    fn exact_is_exact_with_or_without_other_runs() {
        let (expectation, mut ledger) = exact(true);
        assert_eq!(expectation.compare("acct-1", &ledger), []);
        ledger.entries.insert(4, foreign());
        ledger.entries.push(foreign());
        ledger.balance += 10;
        assert_eq!(expectation.compare("acct-1", &ledger), []);
    }

    #[test]
    fn every_difference_is_seen() {
        let (expectation, ledger) = exact(true);
        let id = |n: usize| ledger.entries[n].event_id.clone();
        let mut missing = ledger.clone();
        let gone = missing.entries.remove(3);
        missing.balance -= gone.amount;
        assert_eq!(
            expectation.compare("acct-1", &missing),
            [Difference::Missing(id(3))]
        );
        let mut repeated = ledger.clone();
        repeated.entries.push(repeated.entries[2].clone());
        repeated.balance += repeated.entries[2].amount;
        assert_eq!(
            expectation.compare("acct-1", &repeated),
            [Difference::Repeated(id(2))]
        );
        let mut disordered = ledger.clone();
        disordered.entries.swap(5, 6);
        assert_eq!(
            expectation.compare("acct-1", &disordered),
            [Difference::Disordered(id(5))]
        );
        let mut altered = ledger.clone();
        altered.entries[0].event_type = None;
        assert_eq!(
            expectation.compare("acct-1", &altered),
            [Difference::Altered(id(0))]
        );
        let mut balance = ledger.clone();
        balance.balance += 1;
        let found = expectation.compare("acct-1", &balance);
        assert!(matches!(found[..], [Difference::Balance { .. }]));
        let empty = Ledger {
            balance: 0,
            entries: Vec::new(),
        };
        assert_eq!(expectation.compare("acct-1", &empty).len(), 9);
    }

    #[test]
    fn without_sequences_any_order_is_right() {
        let (expectation, mut ledger) = exact(false);
        ledger.entries.reverse();
        assert_eq!(expectation.compare("acct-1", &ledger), []);
    }

    #[test]
    fn differences_are_counted_by_kind_and_the_first_few_told() {
        let (expectation, _) = exact(true);
        let empty = Ledger {
            balance: 0,
            entries: Vec::new(),
        };
        let differences = expectation.compare("acct-1", &empty);
        let found: Differences = differences.into_iter().collect();
        assert!(!found.none());
        assert_eq!((found.missing, found.told.len()), (9, TOLD));
        assert!(Differences::default().none());
    }
}
