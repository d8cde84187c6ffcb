//! The flags of the commands that ask a running instance.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::peers::Url;
use crate::status::DEFAULT_PORT;

/// The flags of `mvproxy routes`.
#[derive(Args, Debug)]
pub(crate) struct RoutesFlags {
    /// The status port of the instance on this host
    #[arg(long, value_name = "PORT", value_parser = super::port, default_value_t = DEFAULT_PORT)]
    pub(crate) status_port: u16,

    /// The form: table, wide (whole ids, last errors) or json
    #[arg(short, long, value_name = "FORM", value_parser = output(), default_value = "table", hide_possible_values = true)]
    pub(crate) output: Output,
}

/// The flags of `mvproxy explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainFlags {
    /// The method, such as GET
    pub(crate) method: String,

    /// The path as a client sends it, with its query, such as '/apis/batch/v1/jobs?watch=1'
    pub(crate) path: String,

    /// The status port of the instance on this host
    #[arg(long, value_name = "PORT", value_parser = super::port, default_value_t = DEFAULT_PORT)]
    pub(crate) status_port: u16,

    /// The form: text or json
    #[arg(short, long, value_name = "FORM", value_parser = text_output(), default_value = "text", hide_possible_values = true)]
    pub(crate) output: TextOutput,
}

/// The flags of `mvproxy skew`.
#[derive(Args, Debug)]
pub(crate) struct SkewFlags {
    /// The status port of the instance on this host, which knows the apiservers
    #[arg(long, value_name = "PORT", value_parser = super::port, default_value_t = DEFAULT_PORT)]
    pub(crate) status_port: u16,

    /// A kubeconfig with a token that may list nodes, and pods in kube-system; without it kubelets and kube-proxies are unknown
    #[arg(long, value_name = "FILE", requires = "ca_file")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The apiserver that is asked for them, as https://IP:PORT [default: the one behind the instance]
    #[arg(long, value_name = "URL", value_parser = super::peers::server_url)]
    pub(crate) server: Option<Url>,

    /// The authorities that sign the apiserver's certificate, in PEM form
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    pub(crate) ca_file: Option<PathBuf>,

    /// The form: text or json
    #[arg(short, long, value_name = "FORM", value_parser = text_output(), default_value = "text", hide_possible_values = true)]
    pub(crate) output: TextOutput,
}

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Table,
    Wide,
    Json,
}

/// How text is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextOutput {
    Text,
    Json,
}

fn output() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(["table", "wide", "json"]).map(|name| match &*name {
        "wide" => Output::Wide,
        "json" => Output::Json,
        _ => Output::Table,
    })
}

fn text_output() -> impl TypedValueParser<Value = TextOutput> {
    PossibleValuesParser::new(["text", "json"]).map(|name| if name == "json" { TextOutput::Json } else { TextOutput::Text })
}
