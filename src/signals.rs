//! SIGINT and SIGTERM: the first asks to end in order, the second ends at once.
//!
//! SIGPIPE needs nothing: the standard library ignores it from the start, and a write to a closed pipe is an error.

use std::thread;

use tokio::runtime;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::failure::Failure;

/// A signal that asks the program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGINT, Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// As a log names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// What a shell reports for a process that the signal ended.
    fn exit_code(self) -> i32 {
        match self {
            Self::Interrupt => 128 + 2,
            Self::Terminate => 128 + 15,
        }
    }
}

/// From now on the first signal calls `first`, and the next one ends the process. One thread waits for them until the end.
pub(crate) fn listen(first: impl FnOnce(Signal) + Send + 'static) -> Result<(), Failure> {
    let failed = |error| Failure::runtime(format_args!("cannot wait for signals: {error}; is the limit of processes or files reached?"));
    let runtime = runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
    };
    let wait = move || {
        runtime.block_on(async {
            first(next(&mut interrupt, &mut terminate).await);
            std::process::exit(next(&mut interrupt, &mut terminate).await.exit_code());
        });
    };
    thread::Builder::new().name(String::from("signals")).spawn(wait).map_err(failed)?;
    Ok(())
}

async fn next(interrupt: &mut Stream, terminate: &mut Stream) -> Signal {
    tokio::select! {
        _ = interrupt.recv() => Signal::Interrupt,
        _ = terminate.recv() => Signal::Terminate,
    }
}
