//! The connection to the database that has the record, kept from one access to the next.

use super::{
    record::{ACCESS_WAIT_MAX, RecordError, TABLE},
    session_lock::SessionLock,
};
use crate::SourceError;
use tokio::{sync::Mutex, time::timeout};

/// The error of a table with other columns or values.
pub(super) fn malformed() -> RecordError {
    RecordError(format!("the table {TABLE} has another form; drop it and run `lookaside invalidator setup` again"))
}

pub(super) fn reason(error: SourceError) -> RecordError {
    RecordError(error.reason().to_owned())
}

/// What mends a missing table or right, with the SQL that creates them.
pub(super) fn advise_setup(table_sql: &str) -> String {
    format!("; run `lookaside invalidator setup --shared-state`, or\n{}", table_sql.trim_end())
}

/// What mends a database that cannot be written.
pub(super) const ADVICE_READ_ONLY: &str =
    "; it is read-only: --shared-state must be a database that can be written, such as the primary";

/// A connection of type `C`, and what is known of its session.
pub(super) struct KeptSession<C> {
    pub connection: C,
    /// Another one for each connection that was made.
    pub number: u64,
    /// The lock that it has taken; `None` if it has taken none.
    pub lock: Option<SessionLock>,
    /// How many beats it was asked for.
    pub beats: u64,
}

impl<C> KeptSession<C> {
    /// The lock of the last beat, and that of the next one, which this counts; `None` if the session has no lock.
    pub fn next_beat(&mut self) -> Option<(SessionLock, SessionLock)> {
        let lock = self.lock?;
        self.beats += 1;
        Some((lock.of_beat(self.beats - 1), lock.of_beat(self.beats)))
    }
}

/// The connection of one process.
pub(super) struct KeptConnection<C>(Mutex<Kept<C>>);

struct Kept<C> {
    session: Option<KeptSession<C>>,
    /// How many connections were made.
    made: u64,
}

impl<C> Default for KeptConnection<C> {
    fn default() -> KeptConnection<C> {
        KeptConnection(Mutex::new(Kept { session: None, made: 0 }))
    }
}

impl<C> KeptConnection<C> {
    /// Runs `query` on the connection, or on one that `open` makes, for a limited time. It gives the connection back;
    /// after a failure the connection is dropped, as it may hold unread replies.
    pub async fn access<T, Q>(
        &self,
        open: impl Future<Output = Result<C, RecordError>>,
        query: impl FnOnce(KeptSession<C>) -> Q,
    ) -> Result<T, RecordError>
    where
        Q: Future<Output = Result<(KeptSession<C>, T), RecordError>>,
    {
        let mut kept = self.0.lock().await;
        let access = async {
            let session = match kept.session.take() {
                Some(session) => session,
                None => {
                    let connection = open.await?;
                    kept.made += 1;
                    KeptSession { connection, number: kept.made, lock: None, beats: 0 }
                }
            };
            let (session, result) = query(session).await?;
            kept.session = Some(session);
            Ok(result)
        };
        timeout(ACCESS_WAIT_MAX, access)
            .await
            .unwrap_or_else(|_| Err(RecordError(format!("the database has not answered within {ACCESS_WAIT_MAX:?}"))))
    }
}
