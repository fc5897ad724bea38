//! The start hook: no instance is there, and the controller has one started.

use serde_json::json;

use crate::cast::{Cast, Settings};
use crate::command::settings;
use crate::support::{complete, eventually, get, metric};

/// Processes that carry a mark in their environment, ended with this.
struct Marked(String);

impl Marked {
    fn alive(&self) -> Vec<i32> {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
            let marked = environment.split(|octet| *octet == 0).any(|v| v == self.0.as_bytes());
            marked.then_some(process)
        });
        processes.collect()
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        for process in self.alive() {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(process),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
}

#[tokio::test]
async fn an_instance_is_started_for_a_request_and_loads_what_is_known() {
    let mark = Marked(format!("KVSP_TEST_MARK={}", uuid::Uuid::new_v4()));
    let mut cast = Cast::start(&settings(1)).await;
    let prompt = "What was computed once is loaded while the model is. ".repeat(8);
    let gateway = cast.gateway.base();
    let (first, cached) = complete(&gateway, &prompt).await;
    assert_eq!(cached, 0);
    let index = cast.index.uri("admin");
    let replicas = prompt.len() as u64 / 16 * 2;
    eventually("the prompt's blocks at the index", async || {
        (metric(&index, "kvsp_index_replicas").await >= replicas).then_some(())
    })
    .await;

    // The only instance dies; the controller comes again with a hook, which starts another one.
    let gone = cast.instances[0].base();
    cast.instances[0].process.kill();
    let (name, value) = mark.0.split_once('=').unwrap();
    let mut command = vec!["/usr/bin/env".to_owned(), format!("{name}={value}")];
    command.push(env!("CARGO_BIN_EXE_kvsp").to_owned());
    command.extend(["serve", "instance", "--listen", "127.0.0.1:0"].map(str::to_owned));
    command.extend(cast.instance_args());
    let hook = format!("[controller.start]\ncommand = {}\nwait_ms = 30000\n", json!(command));
    cast.reconfigure(&Settings { controller: hook, ..settings(1) });
    cast.revive_controller();
    eventually("the end of the dead one's status", async || {
        let list = get(&cast.controller.base(), "instances").await.ok();
        let mut views = list["instances"].as_array().unwrap().iter();
        let active = views.any(|view| view["instance"] == gone.as_str() && view["state"] == "active");
        (!active).then_some(())
    })
    .await;
    assert!(mark.alive().is_empty());

    let (again, cached) = complete(&gateway, &prompt).await;
    assert_eq!(again, first);
    assert!(cached > 0, "nothing was loaded");
    assert_eq!(mark.alive().len(), 1, "one was started");
    let list = get(&cast.controller.base(), "instances").await.ok();
    let views = list["instances"].as_array().unwrap().clone();
    let active: Vec<_> = views.iter().filter(|view| view["state"] == "active").collect();
    assert_eq!(active.len(), 1, "{list}");
    assert_ne!(active[0]["instance"], gone.as_str());
    // The next request has an instance, and none is started for it.
    complete(&gateway, &prompt).await;
    assert_eq!(mark.alive().len(), 1);
}

/// A hook that fails is not run again and again, and the request is told that there is nobody.
#[tokio::test]
async fn a_hook_that_fails() {
    let controller =
        "[controller.start]\ncommand = [\"/bin/false\"]\nwait_ms = 1500\nmin_interval_ms = 60000\n";
    let cast = Cast::start(&Settings { controller: controller.to_owned(), ..settings(0) }).await;
    let body = json!({"model": crate::support::MODEL, "prompt": "x", "max_tokens": 1});
    for _ in 0..2 {
        let answer = crate::support::post(&cast.gateway.base(), "v1/completions", &body).await;
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    let log = cast.controller.log();
    assert_eq!(log.matches("starting an instance").count(), 1, "{log}");
}
