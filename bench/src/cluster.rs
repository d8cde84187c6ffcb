//! Clusters to route in: resources with the names that Kubernetes and well-known operators give them, and servers of two versions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use discovery::inventory::{Event, Exclusion, Inventory, Lease, Readiness, Settings};
use discovery::{AllowList, BuildError, Cidr, Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};

/// How many paths [`Cluster::paths`] makes: more than a branch predictor or the nearest cache remembers.
pub const PATHS: usize = 4_096;

/// Group, version and resources; the core group's is empty. Those of Kubernetes v1.36 first.
const REAL: [(&str, &str, &str); 51] = [
    (
        "",
        "v1",
        "pods services configmaps secrets nodes namespaces endpoints events persistentvolumes persistentvolumeclaims \
         replicationcontrollers serviceaccounts limitranges resourcequotas podtemplates componentstatuses bindings",
    ),
    ("apps", "v1", "deployments replicasets statefulsets daemonsets controllerrevisions"),
    ("batch", "v1", "jobs cronjobs"),
    ("autoscaling", "v1", "horizontalpodautoscalers"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "ingresses ingressclasses networkpolicies ipaddresses servicecidrs"),
    ("rbac.authorization.k8s.io", "v1", "roles rolebindings clusterroles clusterrolebindings"),
    ("storage.k8s.io", "v1", "storageclasses volumeattachments csidrivers csinodes csistoragecapacities volumeattributesclasses"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations mutatingwebhookconfigurations validatingadmissionpolicies \
         validatingadmissionpolicybindings mutatingadmissionpolicies mutatingadmissionpolicybindings",
    ),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "v1", "apiservices"),
    ("authentication.k8s.io", "v1", "tokenreviews selfsubjectreviews"),
    ("authorization.k8s.io", "v1", "subjectaccessreviews selfsubjectaccessreviews selfsubjectrulesreviews localsubjectaccessreviews"),
    ("certificates.k8s.io", "v1", "certificatesigningrequests"),
    ("coordination.k8s.io", "v1", "leases"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("events.k8s.io", "v1", "events"),
    ("flowcontrol.apiserver.k8s.io", "v1", "flowschemas prioritylevelconfigurations"),
    ("node.k8s.io", "v1", "runtimeclasses"),
    ("scheduling.k8s.io", "v1", "priorityclasses"),
    ("resource.k8s.io", "v1", "deviceclasses resourceclaims resourceclaimtemplates resourceslices"),
    ("internal.apiserver.k8s.io", "v1alpha1", "storageversions"),
    ("metrics.k8s.io", "v1beta1", "nodes pods"),
    ("cert-manager.io", "v1", "certificates certificaterequests issuers clusterissuers"),
    ("acme.cert-manager.io", "v1", "challenges orders"),
    ("monitoring.coreos.com", "v1", "prometheuses alertmanagers servicemonitors podmonitors probes prometheusrules thanosrulers"),
    ("monitoring.coreos.com", "v1alpha1", "alertmanagerconfigs prometheusagents scrapeconfigs"),
    (
        "networking.istio.io",
        "v1",
        "virtualservices destinationrules gateways serviceentries sidecars workloadentries workloadgroups envoyfilters proxyconfigs",
    ),
    ("security.istio.io", "v1", "authorizationpolicies peerauthentications requestauthentications"),
    ("gateway.networking.k8s.io", "v1", "gateways gatewayclasses httproutes grpcroutes referencegrants"),
    (
        "cilium.io",
        "v2",
        "ciliumnetworkpolicies ciliumclusterwidenetworkpolicies ciliumendpoints ciliumidentities ciliumnodes ciliumexternalworkloads",
    ),
    ("argoproj.io", "v1alpha1", "applications applicationsets appprojects rollouts workflows cronworkflows workflowtemplates"),
    ("source.toolkit.fluxcd.io", "v1", "gitrepositories helmrepositories helmcharts buckets ocirepositories"),
    ("kustomize.toolkit.fluxcd.io", "v1", "kustomizations"),
    ("helm.toolkit.fluxcd.io", "v2", "helmreleases"),
    ("cluster.x-k8s.io", "v1beta1", "clusters machines machinedeployments machinesets machinepools machinehealthchecks"),
    ("infrastructure.cluster.x-k8s.io", "v1beta2", "awsclusters awsmachines awsmachinetemplates awsmanagedcontrolplanes"),
    ("external-secrets.io", "v1", "externalsecrets secretstores clustersecretstores clusterexternalsecrets"),
    ("kyverno.io", "v1", "policies clusterpolicies"),
    ("keda.sh", "v1alpha1", "scaledobjects scaledjobs triggerauthentications clustertriggerauthentications"),
    ("serving.knative.dev", "v1", "services routes configurations revisions domainmappings"),
    ("tekton.dev", "v1", "tasks taskruns pipelines pipelineruns"),
    ("velero.io", "v1", "backups restores schedules backupstoragelocations volumesnapshotlocations podvolumebackups podvolumerestores"),
    ("snapshot.storage.k8s.io", "v1", "volumesnapshots volumesnapshotclasses volumesnapshotcontents"),
    ("longhorn.io", "v1beta2", "volumes replicas engines engineimages instancemanagers sharemanagers backingimages settings"),
    ("ceph.rook.io", "v1", "cephclusters cephblockpools cephfilesystems cephobjectstores cephobjectstoreusers cephnfses"),
    ("postgresql.cnpg.io", "v1", "backups clusters poolers scheduledbackups"),
    ("kafka.strimzi.io", "v1beta2", "kafkas kafkatopics kafkausers kafkaconnects kafkaconnectors kafkamirrormaker2s kafkabridges"),
    ("karpenter.sh", "v1", "nodepools nodeclaims"),
    ("crd.projectcalico.org", "v1", "bgpconfigurations bgppeers felixconfigurations globalnetworkpolicies ippools hostendpoints"),
];

/// Group-versions of custom resources, whose requests go the same way as what nobody serves, and further.
pub const CUSTOM: [(&str, &str); 6] = [
    ("apps.example.com", "v1"),
    ("apps.example.com", "v1beta1"),
    ("backup.storage.example.org", "v1alpha1"),
    ("databases.example.net", "v2"),
    ("policy.security.example.com", "v1"),
    ("workflows.example.io", "v1beta2"),
];

/// What servers serve.
pub struct Cluster {
    servers: Vec<Server>,
    serves: Vec<(Gvr, ServerSet)>,
}

impl Cluster {
    /// So many GVRs on so many servers, of which there are at least two: real names first, then those of ever more custom resources.
    /// The first server is local; half of the others are newer.
    pub fn new(gvrs: usize, servers: u8) -> Result<Self, BuildError> {
        let servers: Vec<Server> = (1..=servers).map(server).collect();
        let mut builder = SnapshotBuilder::new(1);
        let indices = servers.iter().map(|server| builder.server(server.clone())).collect::<Result<Vec<_>, _>>()?;
        let everybody: ServerSet = indices.iter().copied().collect();
        let peers = everybody.without(ServerSet::only(indices[0]));
        let newer: ServerSet = indices.iter().copied().skip(1).step_by(2).collect();
        let by = |nth: usize| match nth % 16 {
            0 => peers,
            1 => newer,
            2 => everybody.without(newer),
            3 => ServerSet::only(indices[1 + nth % (indices.len() - 1)]),
            _ => everybody,
        };
        let serves = names().take(gvrs).enumerate().map(|(nth, gvr)| (gvr, by(nth))).collect();
        Ok(Self { servers, serves })
    }

    /// Every GVR, and who serves it.
    pub fn serves(&self) -> &[(Gvr, ServerSet)] {
        &self.serves
    }

    /// The table, from nothing.
    pub fn snapshot(&self) -> Result<Snapshot, BuildError> {
        let mut builder = SnapshotBuilder::new(1);
        for (nth, server) in self.servers.iter().enumerate() {
            let index = builder.server(server.clone())?;
            if nth == 0 {
                builder.local(index);
            }
        }
        for (gvr, by) in &self.serves {
            builder.serve(gvr, *by)?;
        }
        for (group, version) in CUSTOM {
            builder.exclude(group, version)?;
        }
        builder.build()
    }

    /// The fold that knows all of this, as if the cluster had said it.
    pub fn inventory(&self) -> Inventory {
        let now = Instant::now();
        let mut inventory = Inventory::new(Settings {
            local: self.servers[0].id.clone(),
            local_address: self.servers[0].address,
            peers: BTreeMap::new(),
            allowed: AllowList { ranges: Cidr::parse("10.0.0.0/8").into_iter().collect(), ports: vec![6443], own: Vec::new() },
            allow_endpoints: false,
            reaches_proxies: false,
        });
        let lease = |server: &Server| Lease {
            id: server.id.clone(),
            holder: server.id.as_str().into(),
            address: Some(server.address),
            hostname: None,
        };
        inventory.apply(Event::Leases(self.servers.iter().map(lease).collect()), now);
        inventory.apply(Event::Endpoints(Vec::new()), now);
        let custom = CUSTOM.iter().map(|(group, version)| ((*group).into(), (*version).into())).collect();
        inventory.apply(Event::Excluded(Exclusion::Custom, custom), now);
        inventory.apply(Event::Excluded(Exclusion::Aggregated, Vec::new()), now);
        for (nth, Server { id, .. }) in self.servers.iter().enumerate() {
            inventory.apply(Event::Probed { server: id.clone(), readiness: Readiness::Ready, vouched: None }, now);
            let is_its = |by: &ServerSet| by.iter().any(|index| index.get() == nth);
            let serves = self.serves.iter().filter(|(_, by)| is_its(by)).map(|(gvr, _)| gvr.clone()).collect();
            let (holder, began) = (Some(id.as_str().into()), now + Duration::from_millis(1));
            inventory.apply(Event::Fetched { server: id.clone(), holder, began, serves: Some(serves) }, began);
        }
        inventory
    }

    /// [`PATHS`] of them in no order: three quarters are of GVRs that are known, the others are of custom resources, or have a group, a
    /// version or a resource that is not. One text of lines, so that they lie one behind the other, in the order in which they are walked: a path
    /// that the engine asks about was decoded a moment ago and is at hand, and one that is fetched from anywhere on the heap measures the heap.
    pub fn paths(&self) -> String {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |count: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 32).unwrap_or_default() % count
        };
        let mut paths: Vec<String> = (0..PATHS)
            .map(|nth| {
                // A stride that is prime to the number of GVRs visits all of them.
                let Gvr { group, version, resource } = &self.serves[nth * 7_919 % self.serves.len()].0;
                let (group, version, resource) = match below(16) {
                    0 => (format!("{group}.missing"), version.to_string(), resource.to_string()),
                    1 => (group.to_string(), "v9".to_owned(), resource.to_string()),
                    2 => (group.to_string(), version.to_string(), format!("{resource}x")),
                    3 => (CUSTOM[nth % CUSTOM.len()].0.to_owned(), CUSTOM[nth % CUSTOM.len()].1.to_owned(), resource.to_string()),
                    _ => (group.to_string(), version.to_string(), resource.to_string()),
                };
                let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
                match below(5) {
                    0 => format!("{root}/namespaces/default/{resource}?limit=500"),
                    1 => format!("{root}/{resource}?allowWatchBookmarks=true&resourceVersion={nth}&watch=true"),
                    2 => format!("{root}/{resource}/object-{nth}"),
                    3 => format!("{root}/namespaces/team-{}/{resource}/object-{nth}/status", nth % 100),
                    _ => format!("{root}/namespaces/kube-system/{resource}/object-{nth}-5d4f8c7b9-x2x7q"),
                }
            })
            .collect();
        for at in (1..paths.len()).rev() {
            paths.swap(at, below(at + 1));
        }
        paths.join("\n")
    }
}

fn server(nth: u8) -> Server {
    Server::new(ServerId::new(&format!("cp-{nth}")), ([10, 0, 0, nth], 6443).into())
}

/// Names without end.
fn names() -> impl Iterator<Item = Gvr> {
    let real = REAL
        .into_iter()
        .flat_map(|(group, version, resources)| resources.split_whitespace().map(move |resource| Gvr::new(group, version, resource)));
    let made_up = (0_usize..).map(|nth| {
        // Groups of forty.
        let team = ["payments", "search", "identity", "billing", "data-platform", "edge", "ml-serving", "observability"][nth / 40 % 8];
        let kind = ["widgets", "gateways", "pipelines", "databases", "tenants"][nth % 5];
        let version = ["v1", "v1beta1", "v1alpha2"][nth / 40 % 3];
        Gvr::new(&format!("{team}{}.platform.example.com", nth / 40), version, &format!("{kind}{}", nth % 40))
    });
    real.chain(made_up)
}
