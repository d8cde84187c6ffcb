//! What came of a script, in terms that both sides have.

use std::collections::BTreeMap;

/// A message that was handed on: pseudo-headers, fields and trailers in order of their names, and the body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub is_whole: bool,
    /// Names of fields that no hop may index.
    pub never: Vec<String>,
}

/// All that came of a script so far.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By path (requests) or stream (responses).
    pub messages: BTreeMap<String, Message>,
    /// Streams reset, with codes, in order.
    pub resets: Vec<(u32, u32)>,
    /// The connection error.
    pub goaway: Option<u32>,
}

/// What one step did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A connection error with this code.
    Conn(u32),
    /// Stream errors.
    Stream(Vec<(u32, u32)>),
    /// No error: taken, or ignored.
    Fine,
}

impl Verdict {
    /// Without the number of the stream.
    pub fn class(&self) -> String {
        match self {
            Self::Conn(code) => format!("Conn({code})"),
            Self::Stream(resets) => format!("Stream({})", resets[0].1),
            Self::Fine => "Fine".to_owned(),
        }
    }
}

impl Outcome {
    /// What happened since `before`.
    pub fn since(&self, before: &Self) -> Verdict {
        match self.goaway {
            Some(code) => Verdict::Conn(code),
            _ if self.resets.len() > before.resets.len() => Verdict::Stream(self.resets[before.resets.len()..].to_vec()),
            _ => Verdict::Fine,
        }
    }

    /// Takes over what a side has now. A message that came whole stays so, whatever becomes of its stream.
    pub fn update(&mut self, messages: impl Iterator<Item = (String, Message)>, resets: &[(u32, u32)], goaway: Option<u32>) {
        for (key, message) in messages {
            let known = self.messages.entry(key).or_default();
            if !known.is_whole {
                *known = message;
            }
        }
        self.resets.clear();
        for &(stream, code) in resets {
            if !self.resets.iter().any(|known| known.0 == stream) {
                self.resets.push((stream, code));
            }
        }
        self.goaway = goaway;
    }

    /// Messages that came whole.
    pub fn whole(&self) -> BTreeMap<&str, &Message> {
        self.messages.iter().filter(|(_, message)| message.is_whole).map(|(key, message)| (key.as_str(), message)).collect()
    }
}

/// The value of a field.
pub fn told(fields: &[(Vec<u8>, Vec<u8>)], name: &str) -> Option<String> {
    fields.iter().find(|(n, _)| n == name.as_bytes()).map(|(_, value)| String::from_utf8_lossy(value).into_owned())
}
