//! The driver of a node: at kubelet's sockets, and on the API server.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use tokio::join;
use tokio::sync::watch;

use super::Registered;
use super::amounts::{Amounts, LOOKS};
use super::api::Api;
use super::classes::Told;
use super::driver::Driver;
use super::engine::{Engine, GRACE, Offered, REFUSED, SETTLE};
use super::kubelet::KubeletFiles;
use super::publish::{Published, Publisher, WRITE_INTERVAL};

/// Serves claims and publishes devices until `stop` holds true. `plugin` is told which classes are left to the device
/// plugin, which has that directory, and `none` of which resources it is to have no device.
pub async fn run(
    driver: Driver,
    api: Api,
    device_plugins: PathBuf,
    (plugin, none): (
        watch::Sender<BTreeSet<Class>>,
        watch::Sender<BTreeSet<ResourceName>>,
    ),
    stop: watch::Receiver<bool>,
) {
    let (registered_sender, registered) = watch::channel(Registered::default());
    let (published, _kept) = watch::channel(Published::default());
    let (dra, classes) = watch::channel(BTreeSet::new());
    let (undecided, of_undecided) = watch::channel(BTreeSet::from(Class::ALL));
    let (device_classes, of_device_classes) = watch::channel(Told::default());
    let engine = Engine {
        api: api.clone(),
        node: driver.node.clone(),
        snapshots: driver.host.clone(),
        registered: registered.clone(),
        kubelet: KubeletFiles {
            host_root: driver.host_root.clone(),
            device_plugins,
        },
        device_classes,
        spec_dir: driver.spec_dir(),
        grace: GRACE,
        settle: SETTLE,
        refused: REFUSED,
        has_offered: false,
    };
    let amounts = Amounts {
        api: api.clone(),
        node: driver.node.clone(),
        snapshots: driver.host.clone(),
        registered: registered.clone(),
        classes: classes.clone(),
        looks: LOOKS,
    };
    let publisher = Publisher {
        api,
        node: driver.node.clone(),
        snapshots: driver.host.clone(),
        registered,
        classes,
        undecided: of_undecided,
        device_classes: of_device_classes.clone(),
        metrics: Arc::clone(&driver.metrics),
        write_interval: WRITE_INTERVAL,
        stop: stop.clone(),
    };
    let deciding = tokio::spawn(engine.run(Offered {
        dra,
        plugin,
        undecided,
    }));
    let counting = tokio::spawn(amounts.run(none));
    join!(
        driver.run(registered_sender, of_device_classes, stop),
        publisher.run(published)
    );
    deciding.abort();
    counting.abort();
}
