//! The service of device plugins.

use std::sync::Arc;
use std::time::Duration;

use onload_host::specdir::sha256;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::go_plugin::Messages;
use crate::snapshot::NomadSnapshot;
use crate::statistics;
use crate::surveyor::NomadSurveyor;
use crate::wire::device::device_plugin_server::DevicePlugin;
use crate::wire::device::{
    FingerprintRequest, FingerprintResponse, ReserveRequest, ReserveResponse, StatsRequest,
    StatsResponse,
};

/// Default interval of statistics.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

type Snapshots = watch::Receiver<Option<Arc<NomadSnapshot>>>;

#[derive(Debug)]
pub struct DeviceService {
    pub surveyor: Arc<NomadSurveyor>,
}

#[tonic::async_trait]
impl DevicePlugin for DeviceService {
    type FingerprintStream = Messages<FingerprintResponse>;

    async fn fingerprint(
        &self,
        _request: Request<FingerprintRequest>,
    ) -> Result<Response<Self::FingerprintStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(publish(self.surveyor.snapshots(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let ids = request.into_inner().device_ids;
        let words = ids.join(", ");
        let snapshot = wait_for_own_tasks(self.surveyor.snapshots(), &ids).await?;
        let reserved = spawn_blocking(move || snapshot.reserve(&ids))
            .await
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::failed_precondition(format!("{error:#}")));
        match &reserved {
            Ok(reservation) => tracing::info!(
                "reserved {words}: {} variables, {} mounts, {} device nodes",
                reservation.envs.len(),
                reservation.mounts.len(),
                reservation.devices.len()
            ),
            Err(status) => tracing::error!("{}", status.message()),
        }
        Ok(Response::new(ReserveResponse { container_res: Some(reserved?) }))
    }

    type StatsStream = Messages<StatsResponse>;

    async fn stats(
        &self,
        request: Request<StatsRequest>,
    ) -> Result<Response<Self::StatsStream>, Status> {
        let every = request
            .into_inner()
            .collection_interval
            .and_then(|every| {
                let seconds = u64::try_from(every.seconds).ok()?;
                Some(Duration::new(seconds, u32::try_from(every.nanos).ok()?))
            })
            .filter(|every| !every.is_zero())
            .unwrap_or(DEFAULT_INTERVAL);
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(count(self.surveyor.snapshots(), every, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

async fn first_snapshot(snapshots: &mut Snapshots) -> Result<Arc<NomadSnapshot>, Status> {
    snapshots
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|snapshot| snapshot.as_ref().map(Arc::clone))
        .ok_or_else(|| Status::internal("the thread that reads the host has ended"))
}

/// Waits until no task of this client holds the requested devices, at most for `reserve_wait`, and returns the
/// snapshot. Nomad starts a task before the runtime has finished the previous one, and never retries a rejected batch
/// job.
async fn wait_for_own_tasks(
    mut snapshots: Snapshots,
    ids: &[String],
) -> Result<Arc<NomadSnapshot>, Status> {
    let begin = Instant::now();
    let mut is_logged = false;
    loop {
        let snapshot = first_snapshot(&mut snapshots).await?;
        let (shared_snapshot, wanted_ids) = (Arc::clone(&snapshot), ids.to_vec());
        // Does not wait if leases cannot be read. The runtime reports that.
        let holder =
            spawn_blocking(move || shared_snapshot.find_own_holder(&wanted_ids).ok().flatten());
        let holder = holder.await.ok().flatten();
        let Some(holder) = holder.filter(|_| begin.elapsed() < snapshot.settings.reserve_wait)
        else {
            return Ok(snapshot);
        };
        if !is_logged {
            let ids = ids.join(", ");
            tracing::info!("reserving {ids}: waiting for a task of this client, {holder}");
            is_logged = true;
        }
        sleep(PAUSE).await;
    }
}

/// Sends the devices whenever they change. This never ends the stream, because Nomad would forget the devices and not
/// request them again.
async fn publish(mut snapshots: Snapshots, to: mpsc::Sender<Result<FingerprintResponse, Status>>) {
    // A digest, since the devices themselves take megabytes.
    let mut sent = None;
    loop {
        let groups = snapshots.borrow_and_update().as_ref().map(|snapshot| snapshot.to_wire());
        if let Some(groups) = groups {
            let message = FingerprintResponse { device_group: groups };
            let digest = sha256(&message.encode_to_vec());
            if sent.as_ref() != Some(&digest) {
                tracing::debug!("{} groups of devices are published", message.device_group.len());
                if to.send(Ok(message)).await.is_err() {
                    return;
                }
                sent = Some(digest);
            }
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { to.closed().await; return },
            () = to.closed() => return,
        }
    }
}

async fn count(
    mut snapshots: Snapshots,
    every: Duration,
    to: mpsc::Sender<Result<StatsResponse, Status>>,
) {
    let mut ticks = interval(every);
    // Skips a message while the previous one is unread.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = to.closed() => return,
        }
        let Ok(snapshot) = first_snapshot(&mut snapshots).await else {
            return;
        };
        // Sends no groups if the host could not be opened.
        let read = move || Some(statistics::read(snapshot.host.as_ref()?, &snapshot.plan.groups));
        let groups = spawn_blocking(read).await.ok().flatten();
        let message = StatsResponse { groups: groups.unwrap_or_default() };
        if to.send(Ok(message)).await.is_err() {
            return;
        }
    }
}
