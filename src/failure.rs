//! Why the program ends without having done what it was asked, and with which exit code.
//!
//! What always holds: the text is one line with the cause and the fix.

use std::fmt;
use std::process::ExitCode;

/// Two kinds, because only the second may go away by trying again.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for cannot be meant: flags, values, and the content of files.
    Usage(String),
    /// The machine does not allow it now: files that cannot be read, a port in use, a kernel without io_uring.
    Runtime(String),
}

impl Failure {
    /// A failure of what was asked for.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::Usage(one_line(message))
    }

    /// A failure of the machine.
    pub(crate) fn runtime(message: impl fmt::Display) -> Self {
        Self::Runtime(one_line(message))
    }

    /// The cause and the fix.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Usage(message) | Self::Runtime(message) => message,
        }
    }

    /// 2 and 1, as shells and most tools have it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Runtime(_) => ExitCode::from(1),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Runtime(message)) = self;
        write!(f, "mvproxy: error: {message}")
    }
}

impl std::error::Error for Failure {}

/// Errors of libraries may have several lines, and so may a file's name.
fn one_line(message: impl fmt::Display) -> String {
    message.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
