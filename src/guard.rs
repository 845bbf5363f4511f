//! The second guard: versions of the handlers' own entities, moved in the handler's transaction.

use crate::store::{Backend, Guarding};
use crate::tx::Tx;

/// The longest name of an entity, in bytes: what an index of every database holds.
const LONGEST: usize = 255;

/// Whether a guarded mutation may be made. A handler must look: hence `#[must_use]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a mutation that was refused must not be made"]
pub enum Guarded {
    /// The entity's version is moved. Make the mutation: both commit, or neither does.
    Passed,
    /// The entity is at another version, which is left as it is. Do not make the mutation.
    Refused,
}

impl Guarded {
    /// Whether the mutation may be made.
    pub fn passed(self) -> bool {
        self == Self::Passed
    }
}

impl<DB: Backend> Tx<DB> {
    /// Guards a mutation by the event's own number, such as its sequence or version: passes only if no number as high was
    /// let pass for this entity before, and moves the entity to it. A duplicate that slipped past everything else cannot
    /// be applied twice.
    ///
    /// `entity` is a name of the app's own, 1 to 255 bytes; the same one must be used for the same thing everywhere.
    /// The version is moved in this transaction: a handler that fails leaves it as it was. Two handlers that guard one
    /// entity wait for each other.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] mod example {
    /// # async fn example(mut tx: tower_inbox::Tx<sqlx::Sqlite>, event: tower_inbox::Delivery) -> sqlx::Result<()> {
    /// let (account, sequence) = (event.correlation_id().unwrap_or(""), event.sequence().unwrap_or(0));
    /// if tx.guard(&format!("account {account}"), sequence).await?.passed() {
    ///     sqlx::query("UPDATE account SET balance = balance + 1 WHERE id = ?").bind(account).execute(&mut *tx).await?;
    /// } // else: made before. Answer 2xx all the same, so that the event is done.
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the database said: answer 500, and the delivery is tried again. [`sqlx::Error::Encode`] for a name that is
    /// empty or too long. No error of a taken key is caught here, so that the transaction stays usable.
    pub async fn guard(&mut self, entity: &str, number: i64) -> Result<Guarded, sqlx::Error> {
        self.guarded(entity, Guarding::Above(number)).await
    }

    /// Guards a mutation that was decided on by what was read: passes only if the entity's version is still `expected`
    /// (0: nothing was let pass yet), and moves it to the next one.
    ///
    /// Otherwise as [`Tx::guard`]. Use one of the two for an entity, not both.
    ///
    /// # Errors
    /// As [`Tx::guard`].
    pub async fn guard_expecting(
        &mut self,
        entity: &str,
        expected: i64,
    ) -> Result<Guarded, sqlx::Error> {
        self.guarded(entity, Guarding::At(expected)).await
    }

    async fn guarded(&mut self, entity: &str, guarding: Guarding) -> Result<Guarded, sqlx::Error> {
        if entity.is_empty() || entity.len() > LONGEST {
            let message = format!("the name of a guarded entity must have 1 to {LONGEST} bytes");
            return Err(sqlx::Error::Encode(message.into()));
        }
        let (sql, at) = self.tools();
        let passed = DB::guard(self, &sql, entity, guarding, at).await?;
        Ok(if passed {
            Guarded::Passed
        } else {
            Guarded::Refused
        })
    }
}
