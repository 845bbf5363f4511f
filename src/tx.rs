//! The transaction, lent to the handler.
//!
//! A delivery's connection sits in a slot that travels in the request's extensions. The handler takes it out as a
//! [`Tx`], which puts it back when dropped. Whoever began the transaction then ends it; a handler cannot, since
//! [`Tx`] has no `commit`.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Extensions;
use sqlx::pool::PoolConnection;

use crate::clock::{Clock, Timestamp};
use crate::error::TxError;
use crate::event::{Delivery, Verdict};
use crate::store::{Backend, Sql, close_hard};

/// The transaction in which this event's row is written: what the handler writes here is committed with it, or not
/// at all.
///
/// It dereferences to the database's connection: `sqlx::query(…).execute(&mut *tx)`. A nested
/// `sqlx::Connection::begin(&mut *tx)` is a savepoint and works. The transaction ends after the handler has
/// answered: a 2xx commits it, anything else rolls it back. A handler that keeps it beyond its answer, or ends it by
/// a COMMIT or ROLLBACK of its own, gets a 500 (§4.4).
pub struct Tx<DB: Backend> {
    conn: Option<PoolConnection<DB>>,
    slot: Lent<DB>,
    delivery: Option<Delivery>,
}

impl<DB: Backend> Tx<DB> {
    /// Takes the transaction out of a request's extensions. The axum extractor does the same.
    ///
    /// # Errors
    /// [`TxError::NoInbox`] if the request did not come through an inbox on `DB`; [`TxError::Taken`] if the
    /// transaction is taken already.
    pub fn take(extensions: &Extensions) -> Result<Self, TxError> {
        let slot = extensions
            .get::<Lent<DB>>()
            .ok_or(TxError::NoInbox)?
            .clone();
        let conn = slot.lend().ok_or(TxError::Taken)?;
        Ok(Self {
            conn: Some(conn),
            slot,
            delivery: extensions.get::<Delivery>().cloned(),
        })
    }

    /// What statements of the inbox's own need.
    pub(crate) fn tools(&self) -> (Arc<Sql>, Timestamp) {
        let cell = &self.slot.0;
        (Arc::clone(&cell.sql), cell.clock.now())
    }

    /// States how this delivery is to end, whatever the status that an outer layer makes of the answer
    /// ([`Delivery::decide`]).
    pub fn decide(&self, verdict: Verdict) {
        if let Some(delivery) = &self.delivery {
            delivery.decide(verdict);
        }
    }
}

impl<DB: Backend> fmt::Debug for Tx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("database", &<DB as sqlx::Database>::NAME)
            .finish()
    }
}

impl<DB: Backend> Deref for Tx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.conn
            .as_deref()
            .expect("a Tx holds its connection until it is dropped")
    }
}

impl<DB: Backend> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.conn
            .as_deref_mut()
            .expect("a Tx holds its connection until it is dropped")
    }
}

impl<DB: Backend> Drop for Tx<DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.slot.give_back(conn);
        }
    }
}

/// The slot: cloned with the request, shared with the dispatcher.
pub(crate) struct Lent<DB: Backend>(Arc<Cell<DB>>);

struct Cell<DB: Backend> {
    slot: Mutex<Slot<DB>>,
    taken: AtomicBool,
    sql: Arc<Sql>,
    clock: Arc<dyn Clock>,
}

enum Slot<DB: Backend> {
    Here(PoolConnection<DB>),
    Out,
    /// The delivery is over: a connection that comes back now is in an unknown state.
    Over,
}

impl<DB: Backend> Clone for Lent<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: Backend> Lent<DB> {
    pub(crate) fn new(conn: PoolConnection<DB>, sql: Arc<Sql>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Cell {
            slot: Mutex::new(Slot::Here(conn)),
            taken: AtomicBool::new(false),
            sql,
            clock,
        }))
    }

    fn swap(&self, next: Slot<DB>) -> Slot<DB> {
        std::mem::replace(&mut *self.0.lock(), next)
    }

    fn lend(&self) -> Option<PoolConnection<DB>> {
        let mut slot = self.0.lock();
        match std::mem::replace(&mut *slot, Slot::Out) {
            Slot::Here(conn) => {
                self.0.taken.store(true, Ordering::Relaxed);
                Some(conn)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    fn give_back(&self, conn: PoolConnection<DB>) {
        let mut slot = self.0.lock();
        if matches!(*slot, Slot::Out) {
            *slot = Slot::Here(conn);
        } else {
            drop(slot);
            discard(conn);
        }
    }

    /// Whether anybody has taken it so far.
    pub(crate) fn was_taken(&self) -> bool {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Ends the lending: the connection if it is here, nothing if the handler kept it.
    pub(crate) fn reclaim(&self) -> Option<PoolConnection<DB>> {
        match self.swap(Slot::Over) {
            Slot::Here(conn) => Some(conn),
            Slot::Out | Slot::Over => None,
        }
    }
}

impl<DB: Backend> Cell<DB> {
    fn lock(&self) -> MutexGuard<'_, Slot<DB>> {
        // No code that could panic runs under this lock, so that poisoning says nothing.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<DB: Backend> Drop for Cell<DB> {
    fn drop(&mut self) {
        // Only if the dispatcher was dropped before it could reclaim: a runtime that shuts down.
        if let Slot::Here(conn) = std::mem::replace(&mut *self.lock(), Slot::Over) {
            discard(conn);
        }
    }
}

/// A kept transaction comes back when the delivery is long over, perhaps where no runtime is left.
pub(crate) fn discard<DB: Backend>(conn: PoolConnection<DB>) {
    if tokio::runtime::Handle::try_current().is_ok() {
        close_hard(conn);
    } else {
        drop(conn.detach());
    }
}
