//! packaging/monitoring: the alerting rules, and the queries of the dashboard on the metrics of hosts.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::hosts::{hugepages, x2};
use crate::common::{Commands, needs, package};
use crate::metrics::with_counters;

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(package().join("packaging/monitoring"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn each_alert_fires_when_it_should() {
    if !needs::programs(&["promtool"]) {
        return;
    }
    promtool(&["check", "rules", "alerts.yaml"]);
    promtool(&["test", "rules", "alerts.test.yaml"]);
    let file =
        |name: &str| fs::read_to_string(package().join("packaging/monitoring").join(name)).unwrap();
    let tested = file("alerts.test.yaml");
    for alert in
        file("alerts.yaml").lines().filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert_eq!(tested.matches(&format!("alertname: {alert}\n")).count(), 2, "{alert}");
    }
}

/// The metrics of some hosts as series of promtool; counters grow.
fn series() -> Vec<Value> {
    let sample = |name: &str, labels: &str, values: &str| json!({"series": format!("{name}{{{labels}}}"), "values": values});
    // Only root sees leases and containers.
    let mut series = vec![
        sample("onload_ctk_devices_held", "class=\"vfio\",instance=\"root\"", "1x60"),
        sample("onload_ctk_container_states", "state=\"ready\",instance=\"root\"", "1x60"),
    ];
    let healthy = x2();
    healthy.generate();
    let hosts =
        [("errors", with_counters()), ("pages", hugepages()), ("new", x2()), ("healthy", healthy)];
    for (host, tree) in hosts {
        let text = tree.run(&["metrics"]).done().stdout;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
            let is_counter = name.ends_with("_counters") || name.ends_with("_statistics");
            let values = if is_counter { "0+60x60".to_owned() } else { format!("{value}x60") };
            series.push(sample(name, &format!("instance=\"{host}\",{labels}"), &values));
        }
    }
    series
}

#[test]
fn each_query_of_the_dashboard_finds_samples() {
    if !needs::programs(&["promtool"]) {
        return;
    }
    let path = package().join("packaging/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let queries = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| {
        panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap())
    });
    let tests: Vec<Value> = queries
        .map(|query| {
            let query = query.replace("$instance", ".*").replace("$__rate_interval", "5m");
            json!({
                "expr": format!("count({query}) > bool 0"),
                "eval_time": "30m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            })
        })
        .collect();
    assert!(tests.len() > 5, "{tests:?}");
    let rules = json!({
        "rule_files": [],
        "tests": [{"interval": "1m", "input_series": series(), "promql_expr_test": tests}],
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queries.yaml");
    fs::write(&file, rules.to_string()).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()]);
}
