//! The longer texts of `--help`.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
    0  ended by SIGTERM or SIGINT, after running requests had finished
    1  the machine does not allow it: a file cannot be read, the port is in use, io_uring is
       demanded but refused, a shard failed; demo --once: an answer is wrong
    2  what was asked for cannot be meant: flag, value, routing file, kubeconfig, certificate,
       key, CPU list; or it cannot be told which server is local
  130  second SIGINT: ended at once
  143  second SIGTERM: ended at once";

/// clap's own line would be longer than a screen is wide.
pub(super) const SERVE_USAGE: &str = "mvproxy serve --tls-cert-file=FILE --tls-private-key-file=FILE
                     --peer-ca-file=FILE {--kubeconfig=FILE | --static-routes=FILE} [FLAGS]";

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  The node's address, port 6443, the kube-apiserver of this node behind it on 127.0.0.1:6443:

    mvproxy serve \\
      --tls-cert-file=/etc/kubernetes/pki/apiserver.crt \\
      --tls-private-key-file=/etc/kubernetes/pki/apiserver.key \\
      --peer-ca-file=/etc/kubernetes/pki/ca.crt \\
      --proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt \\
      --proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key \\
      --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt \\
      --kubeconfig=/etc/kubernetes/mvproxy.conf

  Or, with nothing asked of the cluster, --static-routes=FILE instead of the last one. The file
  says who serves what; `local` is the server behind this proxy:

    local: cp-a
    servers:
    - id: cp-a
      address: 127.0.0.1:6443
      serves:
      - {group: \"\", version: v1, resources: [configmaps, pods]}
    - id: cp-b
      address: 10.0.0.6:6443
      serves:
      - {group: \"\", version: v1, resources: [configmaps, pods]}
      - {group: batch, version: v1, resources: [cronjobs, jobs]}

  The same flags in a file, and what it does:

    apiVersion: mvproxy.io/v1alpha1
    kind: ProxyConfiguration
    tlsCertFile: /etc/kubernetes/pki/apiserver.crt
    ...

    mvproxy serve --config=/etc/kubernetes/mvproxy-config.yaml
    curl '127.0.0.1:6446/readyz?verbose'

  Two shards on CPUs 2 and 3, with what they run on and their counters in the log:

    mvproxy serve ... --cpu-list=2-3 -vv
";

pub(super) const DEMO_EXAMPLES: &str = "\
Examples:
  mvproxy demo            shows requests and an upgrade, then stays up for curl and kubectl
                          until Ctrl-C
  mvproxy demo --once     shows them and ends
";

pub(super) const ROUTES_EXAMPLES: &str = "\
Examples:
  mvproxy routes                                   resources and who serves them
  mvproxy routes -o wide                           with whole ids and last errors
  mvproxy routes -o json | jq '.routes[] | select(.servers | length == 1)'

Exit codes: 0; 1 when no instance answers; 2 when the flags cannot be meant";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  mvproxy explain GET /apis/batch/v1/jobs
  mvproxy explain POST /api/v1/namespaces/default/pods -o json

Exit codes: 0; 1 when no instance answers; 2 when the flags cannot be meant";

pub(super) const SKEW_EXAMPLES: &str = "\
Examples:
  mvproxy skew --kubeconfig=/etc/kubernetes/mvproxy.conf --ca-file=/etc/kubernetes/pki/ca.crt

Exit codes: 0; 1 when outside Kubernetes' version skew policy, or when no instance answers;
2 when the flags cannot be meant";
