//! Discovery, generation and the list of offers on hosts with 64, 512 and 4096 virtual functions: the time of
//! each should grow by a factor of at most 64 from the first to the last.

// Criterion's macros create functions without documentation.
#![allow(clippy::unwrap_used)]

#[path = "support/synthetic.rs"]
mod synthetic;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use onload_cdi::{Registry, SpecSource, to_json};
use onload_core::config::Config;
use onload_host::devices::discover;
use onload_host::generate::{InstalledFiles, generate};
use onload_host::host::Host;
use onload_host::offers::build_offers;
use onload_host::pools::resolve;
use onload_test_tree::Tree;

fn hosts(criterion: &mut Criterion) {
    let config = Config::default();
    let surroundings = InstalledFiles { hook: true, ..InstalledFiles::default() };
    for vfs in [64, 512, 4096] {
        let tree = Tree::new();
        synthetic::build(&tree, vfs);
        let mut group = criterion.benchmark_group("host");
        group.throughput(Throughput::Elements(vfs as u64)).sample_size(10);
        group.measurement_time(Duration::from_secs(5));
        group.bench_function(BenchmarkId::new("discover", vfs), |bencher| {
            bencher.iter(|| discover(&Host::open(tree.root()).unwrap(), &config));
        });
        let inventory = discover(&Host::open(tree.root()).unwrap(), &config);
        assert!(inventory.vfio.len() >= vfs / 2, "{}", inventory.vfio.len());
        group.bench_function(BenchmarkId::new("generate", vfs), |bencher| {
            bencher.iter(|| {
                let pools = resolve(&inventory, &config).offered;
                let specs = generate(&inventory, &pools, &config, surroundings).unwrap();
                specs.values().map(|spec| to_json(spec).len()).sum::<usize>()
            });
        });
        let pools = resolve(&inventory, &config);
        let specs = generate(&inventory, &pools.offered, &config, surroundings)
            .unwrap()
            .into_iter()
            .map(|(name, spec)| SpecSource {
                path: format!("onload.dev-{name}.json").into(),
                priority: 0,
                content: Ok(spec),
            });
        let specs = Registry::from_sources(specs.collect());
        let count = build_offers(&inventory, &specs, &pools, &[]).len();
        assert!(count >= vfs / 2, "{count}");
        group.bench_function(BenchmarkId::new("offers", vfs), |bencher| {
            bencher.iter(|| build_offers(&inventory, &specs, &pools, &[]).len());
        });
        group.finish();
    }
}

criterion_group!(benches, hosts);
criterion_main!(benches);
