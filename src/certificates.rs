//! The certificate files: read at start, and again whenever they change (threats.md T8).
//!
//! What always holds: a certificate and its key are used together or not at all; files that cannot be read or used leave what was there,
//! with one line in the log; what was built last is what the files last said rightly.
//!
//! Contents are compared, not times: links swapped by a kubelet, files renamed over, or written in place all look the same that way.

use std::sync::Arc;

use engine::tls::{self, Configs, PairPem, Serving, SniPem};
use rustls::ClientConfig;
use rustls::pki_types::UnixTime;

use crate::cli::{ServeFlags, SniFiles};
use crate::failure::Failure;
use crate::files::{self, Named};
use crate::log;

/// All certificate files of a command line, and what they say.
pub(crate) struct Certificates<'a> {
    serving: Watched<'a, Serving>,
    peer: Watched<'a, Arc<ClientConfig>>,
    local: Watched<'a, Arc<ClientConfig>>,
    /// The front-proxy pair, which is only checked so far.
    front_proxy: Option<Watched<'a, ()>>,
    sni: &'a [SniFiles],
}

impl<'a> Certificates<'a> {
    /// Reads all of them.
    pub(crate) fn load(flags: &'a ServeFlags) -> Result<Self, Failure> {
        let sni = flags.tls_sni_cert_key.as_slice();
        let mut serving = vec![
            Named { flag: "--tls-cert-file", path: &flags.tls_cert_file },
            Named { flag: "--tls-private-key-file", path: &flags.tls_private_key_file },
        ];
        for pair in sni {
            serving.extend([&pair.cert, &pair.key].map(|path| Named { flag: "--tls-sni-cert-key", path }));
        }
        let ca = Named { flag: "--peer-ca-file", path: &flags.peer_ca_file };
        let local_ca = flags.local_ca_file.as_deref().map_or(ca, |path| Named { flag: "--local-ca-file", path });
        let front_proxy = match (&flags.proxy_client_cert_file, &flags.proxy_client_key_file) {
            (Some(cert), Some(key)) => {
                let cert = Named { flag: "--proxy-client-cert-file", path: cert };
                let key = Named { flag: "--proxy-client-key-file", path: key };
                Some(Watched::load(vec![cert, key], check_pair)?)
            }
            _ => None,
        };
        Ok(Self {
            serving: Watched::load(serving, |files, bytes| build_serving(files, bytes, sni))?,
            peer: Watched::load(vec![ca], verifier)?,
            local: Watched::load(vec![local_ca], verifier)?,
            front_proxy,
            sni,
        })
    }

    /// What new connections are made with.
    pub(crate) fn configs(&self) -> Configs {
        Configs { clients: self.serving.built.clone(), local: Arc::clone(&self.local.built), peer: Arc::clone(&self.peer.built) }
    }

    /// Reads them again: true when something new is to be used.
    pub(crate) fn reload(&mut self) -> bool {
        let sni = self.sni;
        let serving = self.serving.reload(|files, bytes| build_serving(files, bytes, sni));
        let peer = self.peer.reload(verifier);
        let local = self.local.reload(verifier);
        if let Some(pair) = &mut self.front_proxy {
            pair.reload(check_pair);
        }
        serving || peer || local
    }
}

/// Files that are used together.
struct Watched<'a, T> {
    files: Vec<Named<'a>>,
    /// What was last looked at.
    seen: Vec<Vec<u8>>,
    built: T,
    trouble: Trouble,
}

/// What is wrong with what was last looked at. Told only when it is still wrong at the next look: between a new certificate and its new key
/// the pair never fits.
enum Trouble {
    None,
    New(String),
    Told(String),
}

impl<'a, T> Watched<'a, T> {
    fn load(files: Vec<Named<'a>>, build: impl Fn(&[Named<'_>], &[Vec<u8>]) -> Result<T, Failure>) -> Result<Self, Failure> {
        let seen = read(&files)?;
        let built = build(&files, &seen)?;
        Ok(Self { files, seen, built, trouble: Trouble::None })
    }

    /// True when the files changed and are right.
    fn reload(&mut self, build: impl Fn(&[Named<'_>], &[Vec<u8>]) -> Result<T, Failure>) -> bool {
        let bytes = match read(&self.files) {
            Ok(bytes) => bytes,
            Err(failure) => return self.complain(failure.into_message()),
        };
        if bytes == self.seen {
            match std::mem::replace(&mut self.trouble, Trouble::None) {
                Trouble::New(text) => return self.tell(text),
                trouble => self.trouble = trouble,
            }
            return false;
        }
        let built = build(&self.files, &bytes);
        self.seen = bytes;
        match built {
            Ok(built) => {
                self.built = built;
                self.trouble = Trouble::None;
                log::info(format_args!("reloaded {}", self.names()));
                true
            }
            Err(failure) => {
                self.trouble = Trouble::New(failure.into_message());
                false
            }
        }
    }

    /// The files cannot even be read.
    fn complain(&mut self, text: String) -> bool {
        match &self.trouble {
            Trouble::Told(told) if *told == text => false,
            Trouble::New(new) if *new == text => self.tell(text),
            _ => {
                self.trouble = Trouble::New(text);
                false
            }
        }
    }

    fn tell(&mut self, text: String) -> bool {
        log::error(format_args!("{text}: keeping what was loaded before"));
        self.trouble = Trouble::Told(text);
        false
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.files.iter().map(|file| format!("{} {}", file.flag, file.path.display())).collect();
        names.join(", ")
    }
}

fn read(files: &[Named<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
    files.iter().map(|&file| files::read_pem(file)).collect()
}

fn build_serving(files: &[Named<'_>], bytes: &[Vec<u8>], sni: &[SniFiles]) -> Result<Serving, Failure> {
    let pairs: Vec<_> = bytes.chunks_exact(2).map(|pair| PairPem { cert: &pair[0], key: &pair[1] }).collect();
    let others: Vec<_> = pairs.iter().skip(1).zip(sni).map(|(&pair, sni)| SniPem { pair, names: &sni.names }).collect();
    Serving::new(pairs[0], &others, tls::CLIENTS_SPEAK, UnixTime::now()).map_err(|error| {
        let at = error.nth.map_or(0, |nth| nth + 1) * 2;
        files::pair_refused(files[at], files[at + 1], &error.error)
    })
}

fn verifier(files: &[Named<'_>], bytes: &[Vec<u8>]) -> Result<Arc<ClientConfig>, Failure> {
    tls::client_config(&bytes[0], None, tls::SERVERS_SPEAK, UnixTime::now()).map_err(|error| files[0].refused(error))
}

fn check_pair(files: &[Named<'_>], bytes: &[Vec<u8>]) -> Result<(), Failure> {
    tls::check_pair(&bytes[0], &bytes[1], UnixTime::now()).map_err(|error| files::pair_refused(files[0], files[1], &error))
}
