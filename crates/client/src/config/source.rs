//! Where the configuration comes from.

use super::etcd::{EtcdLocation, EtcdWatcher};
use super::file::read_stable;
use crate::Network;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, watched while the process runs.
    File(PathBuf),
    /// A key in etcd, watched while the process runs.
    Etcd(EtcdLocation),
    /// The command line.
    Text(String),
}

impl Source {
    /// The text of the configuration as it is now, of a file when it is not being replaced; etcd is reached through
    /// `network`. Blocks, so it must not be called inside a runtime.
    pub fn read_through(&self, network: Arc<dyn Network>) -> Result<String, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot create the tokio runtime: {error}"))?;
        let text = runtime.block_on(async {
            match self {
                Source::File(path) => read_stable(path).await.unwrap_or_else(|unstable| Err(unstable.to_string())),
                Source::Etcd(location) => EtcdWatcher::new(location.clone(), network, None, 0).read().await,
                Source::Text(text) => Ok(text.clone()),
            }
        });
        // A drop would wait for a lookup of a host name, which cannot be interrupted.
        runtime.shutdown_background();
        text
    }

    /// `why` with the source in front of it, unless it names that already.
    pub fn error_context(&self, why: &str) -> String {
        let source = self.to_string();
        match why.contains(&source) {
            true => why.to_owned(),
            false => format!("{source}: {why}"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Etcd(location) => write!(f, "{location}"),
            Source::Text(_) => write!(f, "configuration on the command line"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Listener, Stream};
    use lookaside_routing::{Address, BoxFuture};
    use std::io;
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    /// The system's resolver cannot be interrupted, so a name is resolved in a thread.
    struct HangingResolver(Mutex<Option<mpsc::Receiver<()>>>);

    impl Network for HangingResolver {
        fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            let end = self.0.lock().expect("no thread panicked").take().expect("one connection");
            Box::pin(async move {
                let _ = tokio::task::spawn_blocking(move || end.recv()).await;
                Err(io::ErrorKind::NotFound.into())
            })
        }

        fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
            unimplemented!("nothing listens")
        }
    }

    /// The timeout was kept, and then the end of the runtime waited for the resolver.
    #[test]
    fn a_resolver_that_hangs_does_not_prolong_the_timeout() {
        let (resolved, end) = mpsc::channel();
        let network = Arc::new(HangingResolver(Mutex::new(Some(end))));
        let location = EtcdLocation::parse("etcd://etcd.example:1/k").expect("names etcd").expect("good");
        let (sender, read) = mpsc::channel();
        std::thread::spawn(move || sender.send(Source::Etcd(location).read_through(network)));
        let read = read.recv_timeout(Duration::from_secs(20)).expect("it does not wait for the resolver");
        assert!(read.is_err_and(|why| why.contains("no reply within")));
        drop(resolved);
    }
}
