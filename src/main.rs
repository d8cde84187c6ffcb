//! mvproxy, the Kubernetes mixed version proxy: command line, wiring, signals.
//!
//! Flags ([`cli`]) become a configuration ([`serve`], [`files`], [`host`]), the configuration an engine, and [`signals`] end it.
//! [`status`] shows what it knows, and [`ask`] asks it. [`demo`] does the same with simulated servers. What a request meets is in the `engine` crate.

mod ask;
mod certificates;
mod cli;
mod demo;
mod failure;
mod files;
mod host;
mod live;
mod log;
mod memory;
mod serve;
mod signals;
mod status;
mod table;

use std::process::ExitCode;

use cli::{Command, Parsed};
use failure::Failure;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(failure) => {
            log::end(&failure);
            failure.exit_code()
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let command = match cli::parse(std::env::args_os())? {
        Parsed::Command(command) => command,
        Parsed::Printed => return Ok(ExitCode::SUCCESS),
    };
    // Fails only when one is installed already, and nothing ran before.
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    match command {
        Command::Serve(flags) => serve::run(&flags),
        Command::Routes(flags) => ask::routes::run(&flags),
        Command::Explain(flags) => ask::explain::run(&flags),
        Command::Skew(flags) => ask::skew::run(&flags),
        Command::Demo(flags) => demo::run(&flags),
    }
}
