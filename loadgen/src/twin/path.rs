//! Which thing a path names, by the rules of kube-apiserver's RequestInfo. Pure.
//!
//! Leading and trailing slashes are ignored, inner empty segments are kept, and the path is percent-decoded as a
//! whole before it is split. The deprecated `watch/` and `proxy/` prefixes are not known.

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// `/api`.
    Core,
    /// `/apis`.
    Groups,
    /// `/apis/<group>`.
    Group(String),
    /// `/api/<version>` (empty group) or `/apis/<group>/<version>`.
    GroupVersion(String, String),
    /// Something inside a group and version.
    Resource(Target),
    /// `/version`.
    Version,
    /// `/healthz`, `/livez` or `/readyz`.
    Health,
    /// `/debug/twin/<rest>`.
    Debug(String),
    /// Nothing a twin serves.
    Unknown,
}

/// The resource part of a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    /// Empty for the core group.
    pub(super) group: String,
    pub(super) version: String,
    /// Empty for the whole cluster.
    pub(super) namespace: String,
    pub(super) resource: String,
    /// Empty for the collection.
    pub(super) name: String,
    /// Everything after the name.
    pub(super) subresource: String,
}

impl Path {
    /// Parses the raw path of a request, without its query.
    pub(super) fn parse(raw: &str) -> Self {
        let decoded = percent_decode(raw);
        let parts: Vec<&str> = decoded.trim_matches('/').split('/').collect();
        match parts[..] {
            ["api"] => Self::Core,
            ["apis"] => Self::Groups,
            ["api", version] => Self::GroupVersion(String::new(), version.into()),
            ["apis", group] => Self::Group(group.into()),
            ["apis", group, version] => Self::GroupVersion(group.into(), version.into()),
            ["api", version, ref rest @ ..] => Self::Resource(Target::parse("", version, rest)),
            ["apis", group, version, ref rest @ ..] => Self::Resource(Target::parse(group, version, rest)),
            ["version"] => Self::Version,
            ["healthz" | "livez" | "readyz"] => Self::Health,
            ["debug", "twin", ref rest @ ..] => Self::Debug(rest.join("/")),
            _ => Self::Unknown,
        }
    }
}

impl Target {
    fn parse(group: &str, version: &str, rest: &[&str]) -> Self {
        let (namespace, rest) = match rest {
            // `/namespaces/x/status` is about the namespace itself.
            ["namespaces", _, "status" | "finalize", ..] => ("", rest),
            ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (*namespace, inside),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        Self {
            group: group.into(),
            version: version.into(),
            namespace: namespace.into(),
            resource: part(0),
            name: part(1),
            subresource: rest.get(2..).unwrap_or_default().join("/"),
        }
    }
}

/// The first value of `key` in a query, decoded; a key without `=` has the empty value.
pub(super) fn query_value(query: &str, key: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(name) == key).then(|| percent_decode(value))
    })
}

/// Whether a boolean option is on: present, and neither `0` nor `false`.
pub(super) fn query_flag(query: &str, key: &str) -> bool {
    query_value(query, key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// Decodes `%XX`; what is not a valid escape stays as it is, and bytes that are not UTF-8 are replaced.
fn percent_decode(raw: &str) -> String {
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        let escape = (byte == b'%').then(|| raw.get(index + 1..index + 3)).flatten();
        // `from_str_radix` alone would take `+1`.
        let digits = escape.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(value)) => {
                out.push(value);
                index += 3;
            }
            _ => {
                out.push(byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(group: &str, namespace: &str, resource: &str, name: &str, subresource: &str) -> Path {
        Path::Resource(Target {
            group: group.into(),
            version: "v1".into(),
            namespace: namespace.into(),
            resource: resource.into(),
            name: name.into(),
            subresource: subresource.into(),
        })
    }

    #[test]
    fn paths_name_what_kube_apiserver_says() {
        let table = [
            ("/api", Path::Core),
            ("/apis/", Path::Groups),
            ("/apis/batch", Path::Group("batch".into())),
            ("/api/v1", Path::GroupVersion(String::new(), "v1".into())),
            ("/apis/batch/v1", Path::GroupVersion("batch".into(), "v1".into())),
            ("/api/v1/pods", target("", "", "pods", "", "")),
            ("/api/v1/namespaces", target("", "", "namespaces", "", "")),
            ("/api/v1/namespaces/x", target("", "", "namespaces", "x", "")),
            ("/api/v1/namespaces/x/status", target("", "", "namespaces", "x", "status")),
            ("/api/v1/namespaces/x/pods", target("", "x", "pods", "", "")),
            ("/api/v1/namespaces/x/pods/p/log", target("", "x", "pods", "p", "log")),
            ("/apis/batch/v1/namespaces/x/jobs/j%31", target("batch", "x", "jobs", "j1", "")),
            ("/api/v1//pods", target("", "", "", "pods", "")),
            ("/version", Path::Version),
            ("/readyz", Path::Health),
            ("/debug/twin/bytes/7", Path::Debug("bytes/7".into())),
            ("/", Path::Unknown),
            ("/API", Path::Unknown),
        ];
        for (raw, expected) in table {
            assert_eq!(Path::parse(raw), expected, "{raw}");
        }
    }

    #[test]
    fn queries_are_read_like_list_options() {
        for (query, on) in [("watch", true), ("a=1&watch=true", true), ("watch=0", false), ("watch=False", false), ("", false)] {
            assert_eq!(query_flag(query, "watch"), on, "{query}");
        }
        assert_eq!(query_value("a=%2f&b=%zz%+1", "a").unwrap(), "/");
        assert_eq!(query_value("a=%2f&b=%zz%+1", "b").unwrap(), "%zz%+1");
    }
}
