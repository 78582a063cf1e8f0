//! Members of pools that are nearest to the GPUs of a container, at each entry point.

use serde_json::{Value, json};

use crate::common::{HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, stderr, stdout, unique};
use crate::pools::{LEASES, ONE_EACH, WAITS, bundles, host, oci_hook};
use onload_test_needs as needs;

const POOLS: &str = "/run/cdi/onload.dev-rdma-pools.json";

/// The kernel's word of two GPUs: of AMD's render node, which is on the second, and of NVIDIA's driver.
const GPUS: &str = "
    mkdir -p /sys/dev/char /sys/devices/pci0000:20/0000:23:00.0/drm/renderD128
    ln -s ../../devices/pci0000:20/0000:23:00.0/drm/renderD128 /sys/dev/char/226:128
    mount --bind /driver /proc/driver
";

/// Three HCAs for one container each, of which `m0` is nearest to the first GPU, and `m1` to the second.
fn machine() -> Sandbox {
    let sandbox = host(3);
    annotate(
        &sandbox,
        &[("nics", "0 1 2"), ("near", "0000:13:00.0=0:0,1:1,2:2 0000:23:00.0=1:0,0:1,2:2")],
    );
    for (gpu, minor) in [("0000:13:00.0", 0), ("0000:23:00.0", 1)] {
        sandbox.file(
            &format!("/driver/nvidia/gpus/{gpu}/information"),
            format!("GPU UUID: \t GPU-{minor}{minor}\nDevice Minor: \t {minor}\n"),
        );
    }
    sandbox
}

/// What the specification says of the pool `any`, beside its members.
fn annotate(sandbox: &Sandbox, annotations: &[(&str, &str)]) {
    let mut spec: Value = serde_json::from_str(&sandbox.read(POOLS)).unwrap();
    for (key, value) in annotations {
        let key = format!("onload.dev/pool-{key}");
        spec["devices"][0]["annotations"][key] = json!(value);
    }
    sandbox.file(POOLS, spec.to_string());
}

fn near(value: &str) -> Value {
    json!({"onload.dev/rdma": value, "onload.dev/near": "gpu"})
}

/// With the node of the second GPU.
fn with_node(mut config: Value) -> Value {
    let node = json!({"path": "/dev/dri/renderD128", "type": "c", "major": 226, "minor": 128});
    config["linux"]["devices"] = json!([node]);
    config
}

fn with_variable(mut config: Value, variable: &str) -> Value {
    let env = config["process"]["env"].as_array_mut().unwrap();
    env.push(json!(variable));
    config
}

/// The devices of four containers that want one each, in turn, and what the last is told.
fn in_turn(sandbox: &Sandbox, runtime: &str, config: &Value) -> String {
    bundles(sandbox, 4, config);
    let id = unique("near");
    let script = format!(
        "{GPUS}
         r='{runtime} --root /run/runc'
         for n in 1 2 3; do
             $r create -b /b$n {id}-$n </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err; exit 1$n; }}
             grep -l '\"container\":\"{id}-'$n'\"' {LEASES}/*
         done
         $r create -b /b4 {id}-4 </dev/null >/dev/null 2>/tmp/err && exit 14
         grep -o 'which has 0 free of 3' /tmp/err
         $r delete --force {id}-4 2>/dev/null
         for n in 1 2 3; do $r delete --force {id}-$n || exit 2$n; done"
    );
    let output = sandbox.script(&script, b"");
    let output_text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output_text} {}", stderr(&output));
    output_text.replace(&format!("{LEASES}/rdma="), "")
}

const NEAREST_FIRST: &str = "m1#0\nm0#0\nm2#0\nwhich has 0 free of 3\n";

#[test]
fn the_wrapper_gives_the_nearest_that_is_free_to_the_gpu_of_a_node() {
    if has_runc() {
        let config = with_node(config(&near("any"), WAITS));
        let output_text = in_turn(&machine(), WRAPPER_THERE, &config);
        assert_eq!(output_text, NEAREST_FIRST);
    }
}

#[test]
fn the_wrapper_gives_the_nearest_to_the_gpu_that_nvidia_s_variable_names() {
    if !has_runc() {
        return;
    }
    for value in ["1", "GPU-11", "1:0", "MIG-GPU-11/1/0"] {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={value}");
        let config = with_variable(config(&near("any"), WAITS), &variable);
        let output_text = in_turn(&machine(), WRAPPER_THERE, &config);
        assert_eq!(output_text, NEAREST_FIRST, "{value}");
    }
}

#[test]
fn a_request_by_variable_may_be_near_too() {
    if has_runc() {
        let sandbox = machine();
        let environment = format!("[environment]\nallow = [\"rdma\"]\n{ONE_EACH}");
        sandbox.allow(&[], &environment);
        let config = with_variable(
            with_node(config(&json!({}), WAITS)),
            "ONLOAD_CTK_REQUEST=rdma=any;near=gpu",
        );
        assert_eq!(in_turn(&sandbox, WRAPPER_THERE, &config), NEAREST_FIRST);
    }
}

#[test]
fn an_annotation_on_a_living_container_gives_the_nearest_too() {
    if has_runc() {
        let mut config = with_node(config(&near("any"), WAITS));
        config["hooks"] = json!({
            "createRuntime": oci_hook("createRuntime", &[]),
            "poststop": oci_hook("poststop", &[]),
        });
        assert_eq!(in_turn(&machine(), "runc", &config), NEAREST_FIRST);
    }
}

/// What precreate gives a container with this configuration, or why it gives nothing.
fn precreated(sandbox: &Sandbox, config: &Value) -> Result<Vec<String>, String> {
    sandbox.file("/in.json", serde_json::to_vec(config).unwrap());
    let id = unique("precreate");
    let script = format!(
        "{GPUS} mkdir -p /var/{id}/userdata/rootfs && cd /var/{id}/userdata
         {HOOK_THERE} precreate < /in.json > config.json || exit 1
         grep -l '\"container\":\"{id}\"' {LEASES}/*"
    );
    let output = sandbox.script(&script, b"");
    if !output.status.success() {
        let message = stderr(&output);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.len() < 2048, "{} bytes", message.len());
        return Err(message);
    }
    let names = stdout(&output);
    let names = names.lines().map(|line| line.rsplit('=').next().unwrap());
    Ok(names.map(str::to_owned).collect())
}

#[test]
fn precreate_gives_each_gpu_its_nearest_in_turn() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let all = "NVIDIA_VISIBLE_DEVICES=all";
    for (value, variable, given) in [
        ("any", all, ["m0#0"].as_slice()),
        ("any*2", all, &["m0#0", "m1#0"]),
        ("any*2", "NVIDIA_VISIBLE_DEVICES=1", &["m0#0", "m1#0"]),
        ("any", "NVIDIA_VISIBLE_DEVICES=1", &["m1#0"]),
        // What is named is not what the pool gives.
        ("m1,any", "NVIDIA_VISIBLE_DEVICES=1", &["m0#0"]),
    ] {
        let config = with_variable(config(&near(value), WAITS), variable);
        let names = precreated(&machine(), &config).unwrap();
        assert_eq!(names, given, "{value} {variable}");
    }
}

#[test]
fn numa_says_what_may_be_given_and_near_what_of_it_comes_first() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let given = |numa: &str| {
        let sandbox = machine();
        annotate(&sandbox, &[("members", "m0@0 m1@1 m2@1")]);
        let mut annotations = near("any");
        annotations["onload.dev/numa"] = json!(numa);
        precreated(&sandbox, &with_node(config(&annotations, WAITS)))
    };
    assert_eq!(given("0").unwrap(), ["m0#0"]);
    assert_eq!(given("1").unwrap(), ["m1#0"]);
    assert_eq!(given("same").unwrap(), ["m1#0"]);
    assert!(given("2").unwrap_err().contains("all on NUMA node 2"));
}

#[test]
fn what_cannot_be_near_is_refused_in_one_line() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let sandbox = machine();
    let refusal = |annotations: Value, variable: &str| {
        let config = with_variable(config(&annotations, WAITS), variable);
        precreated(&sandbox, &config).unwrap_err()
    };
    let none = refusal(near("any"), "A=1");
    assert!(
        none.contains(
            "annotation \"onload.dev/rdma\": pool rdma=any, near the container's GPUs: the container has no GPU; give it one"
        ),
        "{none}"
    );
    let unknown = refusal(near("fast"), "NVIDIA_VISIBLE_DEVICES=1");
    assert!(unknown.contains("\"fast\"") && unknown.contains("m0"), "{unknown}");
    for device in ["m0", "m0,m1"] {
        let message = refusal(near(device), "NVIDIA_VISIBLE_DEVICES=1");
        let expected = "annotation \"onload.dev/near\": it has no effect without a pool, such as";
        assert!(message.contains(expected), "{device}: {message}");
    }
    let alone = refusal(json!({"onload.dev/near": "gpu"}), "NVIDIA_VISIBLE_DEVICES=1");
    assert!(alone.contains("it has no effect without a pool"), "{alone}");
    let wrong = refusal(
        json!({"onload.dev/rdma": "any", "onload.dev/near": "gpu0"}),
        "NVIDIA_VISIBLE_DEVICES=1",
    );
    assert!(wrong.contains("\"onload.dev/near\" is \"gpu0\"; expected gpu"), "{wrong}");
    for value in
        ["7", "../../../etc/shadow", "GPU-99", "MIG-11112222", &"0,".repeat(512 * 1024), "a\nb"]
    {
        let message = refusal(near("any"), &format!("NVIDIA_VISIBLE_DEVICES={value}"));
        assert!(message.contains("NVIDIA_VISIBLE_DEVICES of the container"), "{message}");
    }
    // A pool of which nothing is near anything, and one of a host without a GPU.
    let message = refusal(near("even"), "NVIDIA_VISIBLE_DEVICES=1");
    assert!(message.contains("its specification has no distances to GPUs"), "{message}");
    annotate(
        &sandbox,
        &[
            ("near", "0000:13:00.0= 0000:23:00.0="),
            ("near-unknown", "the hypervisor shows one flat PCI bus"),
        ],
    );
    let message = refusal(near("any"), "NVIDIA_VISIBLE_DEVICES=1");
    assert!(
        message.contains(
            "could not determine what is nearest to GPU 0000:23:00.0: the hypervisor shows one \
             flat PCI bus;"
        ),
        "{message}"
    );
    annotate(&sandbox, &[("near", "0000:13:00.0=9:0")]);
    let message = refusal(near("any"), "NVIDIA_VISIBLE_DEVICES=1");
    assert!(message.contains("with a NIC that is not in onload.dev/pool-nics"), "{message}");
}
