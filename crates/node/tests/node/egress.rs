//! Egress rules: given to machines, recorded, changed, logged.

use std::time::Duration;

use egress::{Decision, Protocol, Rules};
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::{Closing, Egress, EgressLists, SandboxError, new_sandbox_id};

use crate::support::{Lab, new_sandbox, with_spec};

const MINUTE: Duration = Duration::from_secs(60);

fn egress(allow: &[&str], deny: &[&str]) -> Egress {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Egress::try_from(EgressLists { allow_out: texts(allow), deny_out: texts(deny), ..EgressLists::default() })
        .expect("lists")
}

fn rules(allow: &[&str], deny: &[&str]) -> Option<Rules> {
    Some(Rules::new(allow, deny, &[]).expect("rules"))
}

#[tokio::test(start_paused = true)]
async fn rules_are_kept_over_pause_restart_and_fork() {
    let lab = Lab::new();
    let node = lab.open().await;
    let (allow, deny) = (["*.example.com"], ["0.0.0.0/0"]);
    let new = with_spec(|spec| spec.egress = egress(&allow, &deny));
    let id = node.create(new, None).await.expect("it is made").id;
    assert_eq!(lab.engine.egress_of(&id), rules(&allow, &deny));

    // From files alone it boots again; with memory it continues.
    for kept in [PauseMode::Filesystem, PauseMode::Full] {
        node.pause(&id, kept, false).await.expect("it pauses");
        node.connect(&id, MINUTE, kept).await.expect("it resumes");
        assert_eq!(lab.engine.egress_of(&id), rules(&allow, &deny), "{kept:?}");
    }
    let children = node.fork(&id, MINUTE, 1).await.expect("it forks");
    let child = children[0].as_ref().expect("a child").id.clone();
    assert_eq!(lab.engine.egress_of(&child), rules(&allow, &deny));

    node.set_egress(&id, egress(&[], &["1.1.1.1"]), None).await.expect("it is changed");
    assert_eq!(lab.engine.egress_of(&id), rules(&[], &["1.1.1.1"]));
    assert_eq!(lab.engine.egress_of(&child), rules(&allow, &deny), "the child has its own");
    node.close(Closing::Keep).await.expect("it closes");

    let node = lab.open().await;
    assert_eq!(lab.engine.egress_of(&id), rules(&[], &["1.1.1.1"]));
    let record = node.get(&id).expect("it runs").record;
    assert_eq!(record.spec.egress.lists().deny_out, ["1.1.1.1"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_replaces_everything_also_while_paused() {
    let lab = Lab::new();
    let node = lab.open().await;
    let new = with_spec(|spec| {
        spec.allow_internet = Some(false);
        spec.egress = egress(&["1.1.1.1"], &[]);
    });
    let id = node.create(new, None).await.expect("it is made").id;
    let closed = rules(&["1.1.1.1"], &[]).map(Rules::deny_everything);
    assert_eq!(lab.engine.egress_of(&id), closed, "off, but for what is allowed");
    node.pause(&id, PauseMode::Full, false).await.expect("it pauses");
    node.set_egress(&id, Egress::default(), None).await.expect("it is cleared");
    node.connect(&id, MINUTE, PauseMode::Full).await.expect("it resumes");
    assert_eq!(lab.engine.egress_of(&id), Some(Rules::default()));
    let unknown = node.set_egress(&new_sandbox_id(), Egress::default(), None).await;
    assert!(matches!(unknown, Err(SandboxError::NotFound(_))), "{unknown:?}");
}

#[tokio::test(start_paused = true)]
async fn decisions_are_in_the_sandboxs_log() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = node.create(new_sandbox(), None).await.expect("it is made").id;
    let journal = lab.engine.boots()[0].egress.journal.clone();
    let decision = Decision {
        allowed: false,
        protocol: Protocol::Dns,
        address: None,
        port: None,
        name: Some("evil.example".to_owned()),
        reason: "not allowed".to_owned(),
    };
    journal(decision.clone());
    journal(decision);
    let entries = || async {
        let log = node.log(&id).await.expect("a log");
        log.into_iter().filter(|entry| entry.fields.contains_key("egress")).collect::<Vec<_>>()
    };
    let found = entries().await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].message, "egress denied: dns evil.example: not allowed");
    assert_eq!(found[0].fields["name"], "evil.example");
    node.set_timeout(&id, 10 * MINUTE).await.expect("it lives on");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(entries().await[1].message, "egress denied: dns evil.example: not allowed, 1 more times");
}
