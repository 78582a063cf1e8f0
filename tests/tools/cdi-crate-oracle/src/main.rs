//! Runs the crate `container-device-interface` on specification directories. The arguments are
//! those of `cdi-oracle`, so that one helper serves both.

use std::error::Error;
use std::process::ExitCode;

use container_device_interface::cache::{Cache, with_auto_refresh};
use container_device_interface::spec_dirs::with_spec_dirs;
use container_device_interface::specs::config::CURRENT_VERSION;
use oci_spec::runtime::Spec;

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Vec<String>) -> Result<(), Box<dyn Error>> {
    let (mut dirs, mut devices, mut list) = (Vec::new(), Vec::new(), false);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        match argument.as_str() {
            "--version" => {
                println!("{}", CURRENT_VERSION);
                return Ok(());
            }
            "--list" => list = true,
            "--spec-dir" => dirs.push(value()?),
            "--device" => devices.push(value()?),
            _ => return Err(format!("unknown argument {argument}").into()),
        }
    }
    let mut cache = Cache::default();
    let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
    with_spec_dirs(&dirs)(&mut cache);
    with_auto_refresh(false)(&mut cache);
    let refreshed = cache.refresh().map_err(|error| error.to_string());
    if list { show(&mut cache, refreshed) } else { inject(&mut cache, devices) }
}

fn show(cache: &mut Cache, refreshed: Result<(), String>) -> Result<(), Box<dyn Error>> {
    let mut devices = serde_json::Map::new();
    for name in cache.list_devices() {
        let path = cache.get_device(&name).map(|device| device.get_spec().get_path());
        devices.insert(name, path.into());
    }
    let got: Vec<String> = cache.get_errors().into_keys().collect();
    let scan = refreshed.err();
    println!("{}", serde_json::json!({"devices": devices, "errors": got, "scan": scan}));
    Ok(())
}

fn inject(cache: &mut Cache, devices: Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut config: Spec = serde_json::from_reader(std::io::stdin())?;
    if !devices.is_empty() {
        cache.inject_devices(Some(&mut config), devices).map_err(|error| error.to_string())?;
    }
    println!("{}", serde_json::to_string(&config)?);
    Ok(())
}
