//! The shipped rights on a real kube-apiserver: they are enough where the cluster gives everybody nothing else, and with any rule of them
//! missing the proxy says which, and goes on with what it can do.
//!
//! Proxies with all of them and with one less run side by side in front of one server, each as a user of its own. While they do, the one
//! with all rights shows that a server that did not change says so with 304.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use serde_json::{Value, json};
use support::http1::get_plain;
use support::real::apiserver::NAME;
use support::real::{ADMIN, Apiserver, ControlPlane, MVPROXY, Proxy, Version};
use support::{headers, until};
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// What gives everybody discovery and health in a cluster as it comes: with them the first rule of the ClusterRole is not needed.
const EVERYBODYS: [&str; 2] = ["system:discovery", "system:public-info-viewer"];
/// For anything to be learned, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// For a proxy that may not list something to go on with what it can do.
const GOES_ON: Duration = Duration::from_secs(15);
/// How long it is looked at how a server is polled: two polls are 10 s apart.
const POLLED: Duration = Duration::from_secs(25);

/// One rule that is missing, and what comes of it.
struct Lack {
    name: &'static str,
    is_missing: fn(&Value) -> bool,
    /// What is then denied.
    denied: &'static str,
    /// The line of `/readyz` that says so begins with it.
    says: &'static str,
    /// Is what the local server serves still answered? Never with a 404, in any case.
    serves: bool,
}

static LACKS: [Lack; 5] = [
    Lack {
        name: "no-leases",
        is_missing: |rule| rule["resources"][0] == "leases" && rule["verbs"].as_array().unwrap().contains(&json!("list")),
        denied: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        says: "[-]discovery-leases failed: denied: ",
        serves: true,
    },
    Lack {
        name: "no-lease-of-its-own",
        is_missing: |rule| rule["resources"][0] == "leases" && rule["verbs"].as_array().unwrap().contains(&json!("create")),
        // No right says so; what is denied to all of them has to do.
        denied: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mvproxy-nobody",
        says: "[-]discovery-own-lease failed: denied: ",
        serves: true,
    },
    Lack {
        name: "no-apiservices",
        is_missing: |rule| rule["resources"][0] == "apiservices",
        denied: "/apis/apiregistration.k8s.io/v1/apiservices",
        says: "[-]discovery-apiservices failed: denied: ",
        serves: true,
    },
    Lack {
        name: "no-endpointslices",
        is_missing: |rule| rule["resources"][0] == "endpointslices",
        denied: "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        says: "[-]discovery-endpointslices failed: denied: ",
        serves: true,
    },
    Lack {
        name: "no-urls",
        is_missing: |rule| rule["nonResourceURLs"].is_array(),
        denied: "/readyz",
        says: "[-]local-server failed: /readyz was answered with 403",
        // A server that starts answers 403 as well: it gets nothing before a probe succeeds.
        serves: false,
    },
];

async fn create(admin: &Client, path: &str, object: &Value) -> Value {
    let fields = headers([("content-type", "application/json")]);
    let made = admin.request(Method::POST, path, fields, Bytes::from(object.to_string()), None).await.unwrap();
    assert_eq!(made.status, StatusCode::CREATED, "{path}: {:?}", made.json());
    made.json().unwrap()
}

/// A service account with the rights of the user `mvproxy` less one rule, and its token.
async fn user_without(admin: &Client, lack: &Lack) -> String {
    let name = lack.name;
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    create(admin, accounts, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})).await;
    let mut missing = 0;
    for (kind, namespace) in [("ClusterRole", None), ("Role", Some("kube-system")), ("Role", Some("default"))] {
        let place = namespace.map_or_else(|| RBAC.to_owned(), |namespace| format!("{RBAC}/namespaces/{namespace}"));
        let plural = format!("{}s", kind.to_lowercase());
        let shipped = admin.get(&format!("{place}/{plural}/mvproxy")).await.unwrap();
        assert_eq!(shipped.status, StatusCode::OK, "{place}/{plural}: {:?}", shipped.json());
        let mut rules = shipped.json().unwrap()["rules"].as_array().unwrap().clone();
        let before = rules.len();
        rules.retain(|rule| !(lack.is_missing)(rule));
        missing += before - rules.len();
        let api = "rbac.authorization.k8s.io";
        let role = json!({"apiVersion": format!("{api}/v1"), "kind": kind, "metadata": {"name": name}, "rules": rules});
        create(admin, &format!("{place}/{plural}"), &role).await;
        let binding = json!({
            "apiVersion": format!("{api}/v1"), "kind": format!("{kind}Binding"), "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": name}],
        });
        create(admin, &format!("{place}/{}bindings", kind.to_lowercase()), &binding).await;
    }
    assert_eq!(missing, 1, "{name}: rules that are missing");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let answer = create(admin, &format!("{accounts}/{name}/token"), &request).await;
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Waits until the server knows its rights: the one that is missing is, and another one is not.
async fn is_in_force(plane: &ControlPlane, server: &Apiserver, lack: &Lack, token: &str) {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let is_so = async || {
        // A new connection each time: a server ends one on which it answered 401.
        let connected = Client::connect(server.address(), plane.pki().ca_pem(), NAME, Some(token)).await;
        let Ok(client) = connected else { return false };
        let denied = client.get(lack.denied).await.is_ok_and(|answer| answer.status == StatusCode::FORBIDDEN);
        denied && client.get(crds).await.is_ok_and(|answer| answer.status == StatusCode::OK)
    };
    until(&format!("the rights of {} are in force", lack.name), PATIENCE, is_so).await;
}

fn kubeconfig(plane: &ControlPlane, server: &Apiserver, name: &str, token: &str) -> PathBuf {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": format!("https://{}", server.address())}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": name}}],
    });
    let path = plane.path(&format!("{name}.kubeconfig"));
    std::fs::write(&path, text.to_string()).unwrap();
    path
}

/// A proxy of that user says what is missing, and does what it can.
async fn is_said(proxy: &Proxy, lack: &Lack, begun: Instant) {
    if lack.serves {
        proxy.wait_for(JOBS, StatusCode::OK, GOES_ON.saturating_sub(begun.elapsed())).await;
        println!("{}: served {:?} after the start", lack.name, begun.elapsed());
    }
    loop {
        let (status, checks) = get_plain(proxy.status, "/readyz").await;
        if status == 500 && checks.contains(lack.says) {
            break;
        }
        assert_ne!(status, 200, "{}: it says that it is ready", lack.name);
        if begun.elapsed() > PATIENCE {
            proxy.fail(&format!("of {} did not say `{}` within {PATIENCE:?}: {status} {checks}", lack.name, lack.says));
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(get_plain(proxy.status, "/livez").await, (200, "ok".to_owned()), "{}", lack.name);
    if lack.serves {
        // Still so, and by now it has had time to learn the worst.
        let client = proxy.client(ADMIN).await;
        for _ in 0..20 {
            let answer = client.get(JOBS).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK, "{}: {:?}", lack.name, answer.json());
            sleep(Duration::from_millis(50)).await;
        }
    } else {
        let answer = proxy.client(ADMIN).await.get(JOBS).await.unwrap();
        assert_ne!(answer.status, StatusCode::NOT_FOUND, "{}: {:?}", lack.name, answer.json());
    }
}

/// How often the user `mvproxy` was answered so at that path.
fn answers(server: &Apiserver, path: &str, code: u16) -> usize {
    let is_one = |event: &&Value| {
        event["stage"] == "ResponseComplete"
            && event["requestURI"] == path
            && event["user"]["username"] == MVPROXY.name
            && event["responseStatus"]["code"] == code
    };
    server.audit().all().values().flatten().filter(is_one).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_shipped_rights_are_enough_and_each_is_missed() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).start().await;
    let admin = server.client(ADMIN).await;
    for name in EVERYBODYS {
        let path = format!("{RBAC}/clusterrolebindings/{name}");
        let deleted = admin.request(Method::DELETE, &path, headers([]), Bytes::new(), None).await.unwrap();
        assert_eq!(deleted.status, StatusCode::OK, "{name}: {:?}", deleted.json());
    }
    let mut tokens = Vec::new();
    for lack in &LACKS {
        tokens.push(user_without(&admin, lack).await);
    }
    for (lack, token) in LACKS.iter().zip(&tokens) {
        is_in_force(&plane, &server, lack, token).await;
    }

    let mut whole = Proxy::alone(&plane, &server, &[]);
    whole.wait_ready().await;
    until("all rights: ready", PATIENCE, async || get_plain(whole.status, "/readyz").await.0 == 200).await;
    assert_eq!(whole.client(ADMIN).await.get(JOBS).await.unwrap().status, StatusCode::OK);
    let before = ["/api", "/apis"].map(|path| [200, 304].map(|code| answers(&server, path, code)));
    let polled = Instant::now();

    // Who is local cannot be asked without Leases.
    let id = format!("--server-id={}", server.id());
    let proxies: Vec<(&Lack, Proxy, Instant)> = LACKS
        .iter()
        .zip(&tokens)
        .map(|(lack, token)| {
            let kubeconfig = format!("--kubeconfig={}", kubeconfig(&plane, &server, lack.name, token).display());
            (lack, Proxy::alone(&plane, &server, &[&kubeconfig, &id]), Instant::now())
        })
        .collect();
    for (lack, proxy, begun) in &proxies {
        is_said(proxy, lack, *begun).await;
    }

    sleep(POLLED.saturating_sub(polled.elapsed())).await;
    for (path, [full, unchanged]) in ["/api", "/apis"].into_iter().zip(before) {
        let (full, unchanged) = (answers(&server, path, 200) - full, answers(&server, path, 304) - unchanged);
        println!("{path} in {:?}: {unchanged} times 304, {full} times 200", polled.elapsed());
        assert!(unchanged >= 2, "{path}: {unchanged} times 304, {full} times 200");
    }
}
