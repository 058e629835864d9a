//! Filters the answers of name servers for a sandbox.
//!
//! Removes addresses that the sandbox could not reach anyway, so that a name rebound to the host or
//! to a private network leads nowhere, and clients do not try what is bound to fail. A record with
//! a hint to such an address (SVCB, HTTPS) is removed as a whole. An answer from which nothing is
//! removed is forwarded byte for byte.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::svcb::{IpHint, SvcParamValue};
use hickory_proto::rr::rdata::{HTTPS, SVCB};
use hickory_proto::rr::{Name, RData, Record};

/// One address in an answer.
pub(crate) struct Mention {
    pub(crate) address: IpAddr,
    /// Whether the queried name leads to it, directly or by aliases.
    pub(crate) asked: bool,
    pub(crate) time_to_live: Duration,
}

/// Removes the addresses that `admit` refuses; returns whether there were any.
pub(crate) fn filter(message: &mut Message, mut admit: impl FnMut(&Mention) -> bool) -> bool {
    let aliases = aliases(message);
    let mut removed = false;
    let mut keep = |record: &Record| {
        let time_to_live = Duration::from_secs(record.ttl.into());
        let mut may = |address: IpAddr, asked: bool| admit(&Mention { address, asked, time_to_live });
        let kept = match &record.data {
            RData::A(address) => may(address.0.into(), aliases.contains(&record.name)),
            RData::AAAA(address) => may(address.0.into(), aliases.contains(&record.name)),
            // A client that gets no such record resolves the name.
            RData::SVCB(service) | RData::HTTPS(HTTPS(service)) => hints(service).all(|address| may(address, false)),
            _ => return true,
        };
        removed |= !kept;
        kept
    };
    message.answers.retain(&mut keep);
    message.authorities.retain(&mut keep);
    message.additionals.retain(&mut keep);
    removed
}

/// The addresses in the hints of a service record.
fn hints(service: &SVCB) -> impl Iterator<Item = IpAddr> {
    service.svc_params.iter().flat_map(|(_, value)| match value {
        SvcParamValue::Ipv4Hint(IpHint(hints)) => hints.iter().map(|hint| IpAddr::V4(hint.0)).collect(),
        SvcParamValue::Ipv6Hint(IpHint(hints)) => hints.iter().map(|hint| IpAddr::V6(hint.0)).collect(),
        _ => Vec::new(),
    })
}

/// Limit of aliases that are followed, close to that of resolvers. Each one costs a pass over the
/// whole answer, which is untrusted.
const MOST_ALIASES: usize = 16;

/// The queried name and the names that it is an alias of.
fn aliases(message: &Message) -> Vec<Name> {
    let mut names: Vec<Name> = message.queries.first().map(|query| query.name().clone()).into_iter().collect();
    while names.len() <= MOST_ALIASES {
        let further = message.answers.iter().find_map(|record| match &record.data {
            RData::CNAME(target) if names.contains(&record.name) && !names.contains(&target.0) => {
                Some(target.0.clone())
            }
            _ => None,
        });
        match further {
            Some(name) => names.push(name),
            None => break,
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::op::{MessageType, OpCode, Query};
    use hickory_proto::rr::RecordType;
    use hickory_proto::rr::rdata::svcb::SvcParamKey;
    use hickory_proto::rr::rdata::{A, CNAME, TXT};

    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn answer(records: Vec<Record>) -> Message {
        let mut message = Message::new(7, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name("a.example."), RecordType::A));
        message.add_answers(records);
        message
    }

    fn a(owner: &str, address: [u8; 4]) -> Record {
        Record::from_rdata(name(owner), 30, RData::A(A(Ipv4Addr::from(address))))
    }

    fn cname(owner: &str, target: &str) -> Record {
        Record::from_rdata(name(owner), 30, RData::CNAME(CNAME(name(target))))
    }

    #[test]
    fn refused_addresses_are_removed_and_the_rest_stays() {
        let txt = Record::from_rdata(name("a.example."), 30, RData::TXT(TXT::new(vec!["text".into()])));
        let mut message = answer(vec![a("a.example.", [1, 1, 1, 1]), a("a.example.", [127, 0, 0, 1]), txt.clone()]);
        message.add_additional(a("b.example.", [127, 0, 0, 2]));
        assert!(filter(&mut message, |mention| !mention.address.is_loopback()));
        assert_eq!(message.answers, [a("a.example.", [1, 1, 1, 1]), txt]);
        assert!(message.additionals.is_empty());
    }

    #[test]
    fn a_service_with_a_refused_hint_is_removed() {
        let service = |address: [u8; 4]| {
            let hint = SvcParamValue::Ipv4Hint(IpHint(vec![A(Ipv4Addr::from(address))]));
            let service = SVCB::new(1, name("a.example."), vec![(SvcParamKey::Ipv4Hint, hint)]);
            Record::from_rdata(name("a.example."), 30, RData::HTTPS(HTTPS(service)))
        };
        let mut message = answer(vec![service([1, 1, 1, 1]), service([10, 0, 0, 1])]);
        assert!(filter(&mut message, |mention| !mention.asked && mention.address != IpAddr::from([10, 0, 0, 1])));
        assert_eq!(message.answers, [service([1, 1, 1, 1])]);
    }

    #[test]
    fn nothing_refused_means_nothing_changed() {
        let mut message = answer(vec![a("a.example.", [1, 1, 1, 1])]);
        assert!(!filter(&mut message, |_| true));
        assert_eq!(message.answers.len(), 1);
    }

    #[test]
    fn only_the_name_asked_for_and_its_aliases_count_as_asked() {
        let mut message = answer(vec![
            cname("C.example.", "d.example."),
            cname("a.example.", "c.EXAMPLE."),
            cname("d.example.", "a.example."),
            a("d.example.", [10, 0, 0, 1]),
            a("stranger.example.", [10, 0, 0, 2]),
        ]);
        let mut asked = Vec::new();
        filter(&mut message, |mention| {
            asked.extend(mention.asked.then_some(mention.address));
            assert_eq!(mention.time_to_live, Duration::from_secs(30));
            true
        });
        assert_eq!(asked, [IpAddr::from([10, 0, 0, 1])]);
    }

    #[test]
    fn a_chain_of_aliases_is_followed_so_far_and_no_further() {
        let link = |number: usize| if number == 0 { "a.example.".to_owned() } else { format!("n{number}.example.") };
        let asked_after = |aliases: usize| {
            // The last link first: the order of the records does not matter.
            let mut records: Vec<Record> = (0..aliases).rev().map(|n| cname(&link(n), &link(n + 1))).collect();
            records.push(a(&link(aliases), [10, 0, 0, 1]));
            let mut asked = false;
            filter(&mut answer(records), |mention| {
                asked = mention.asked;
                true
            });
            asked
        };
        assert!(asked_after(0) && asked_after(MOST_ALIASES));
        assert!(!asked_after(MOST_ALIASES + 1));
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_harm(
            addresses in vec(any::<[u8; 4]>(), 0..6),
            damage in vec((any::<usize>(), any::<u8>()), 0..8),
            cut in 0_usize..8,
        ) {
            let mut records: Vec<Record> = addresses.into_iter().map(|address| a("b.example.", address)).collect();
            records.push(cname("a.example.", "b.example."));
            records.push(cname("b.example.", "a.example."));
            let mut bytes = answer(records).to_vec().expect("an answer");
            for (at, byte) in damage {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut);
            if let Ok(mut message) = Message::from_vec(&bytes) {
                filter(&mut message, |mention| mention.address.is_loopback());
                let left = message.answers.iter().any(|record| matches!(&record.data, RData::A(it) if !it.0.is_loopback()));
                prop_assert!(!left, "what is refused is gone");
            }
        }
    }
}
