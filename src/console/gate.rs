//! Wrong tokens are slowed down: each client by itself, where its address is known, so that it shuts out nobody else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tries in a row: fingers slip.
const BURST: u32 = 10;
/// Then one in this time.
const EVERY: Duration = Duration::from_secs(1);
/// Clients that are remembered: some 100 KiB. Those beyond share one place.
const CLIENTS: usize = 1_024;

/// Whose tries are counted together. None: whose address is not known, or for whom there is no room.
type Client = Option<IpAddr>;

#[derive(Default)]
pub(super) struct Gate(Mutex<HashMap<Client, Tries>>);

struct Tries {
    /// When all of them are forgotten. Each pushes it back by [`EVERY`].
    forgotten: Instant,
}

impl Gate {
    /// Counts a try, before it is known whether it is right; or says how long to wait.
    pub(super) fn enter(&self, client: Option<IpAddr>) -> Result<Passed<'_>, Duration> {
        self.enter_at(client, Instant::now())
    }

    fn enter_at(&self, client: Option<IpAddr>, now: Instant) -> Result<Passed<'_>, Duration> {
        let mut client = client.map(network);
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= CLIENTS && !clients.contains_key(&client) {
            clients.retain(|_, tries| tries.forgotten > now);
            if clients.len() >= CLIENTS {
                client = None;
            }
        }
        let tries = clients.entry(client).or_insert(Tries { forgotten: now });
        let forgotten = tries.forgotten.max(now) + EVERY;
        let most = now + EVERY * BURST;
        if forgotten > most {
            return Err(forgotten - most);
        }
        tries.forgotten = forgotten;
        drop(clients);
        Ok(Passed { gate: self, client })
    }
}

/// A try that has been counted.
pub(super) struct Passed<'a> {
    gate: &'a Gate,
    client: Client,
}

impl Passed<'_> {
    /// It was right: it does not count.
    pub(super) fn was_right(self) {
        let mut clients = self.gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tries) = clients.get_mut(&self.client) {
            tries.forgotten = tries
                .forgotten
                .checked_sub(EVERY)
                .unwrap_or(tries.forgotten);
        }
    }
}

/// Whoever has one address of IPv6 has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none() => {
            IpAddr::V6((v6.to_bits() >> 64 << 64).into())
        }
        other => other.to_canonical(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn a_client_that_guesses_is_slowed_down_and_shuts_out_nobody_else() {
        let (gate, now) = (Gate::default(), Instant::now());
        for _ in 0..BURST {
            assert!(gate.enter_at(address("2001:db8::1"), now).is_ok());
        }
        let wait = gate.enter_at(address("2001:db8::2"), now).err();
        assert_eq!(wait, Some(EVERY), "of the same network");
        assert!(gate.enter_at(address("192.0.2.7"), now).is_ok());
        assert!(gate.enter_at(address("2001:db8::1"), now + EVERY).is_ok());
        assert!(gate.enter_at(address("2001:db8::1"), now + EVERY).is_err());
    }

    #[test]
    fn a_right_token_does_not_count() {
        let (gate, now) = (Gate::default(), Instant::now());
        for _ in 0..BURST * 3 {
            let passed = gate
                .enter_at(None, now)
                .unwrap_or_else(|_| panic!("slowed down"));
            passed.was_right();
        }
    }

    #[test]
    fn no_more_clients_are_remembered_than_there_is_room_for() {
        let (gate, now) = (Gate::default(), Instant::now());
        for number in 0..CLIENTS as u32 + 50 {
            let client = Some(IpAddr::V4(number.into()));
            let _ = gate.enter_at(client, now);
        }
        let clients = gate.0.lock().expect("not poisoned").len();
        assert!(clients <= CLIENTS + 1, "{clients}");
    }
}
