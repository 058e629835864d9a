//! Compiles verdicts on system calls to a BPF program.
//!
//! The program finds a call by binary search: the kernel evaluates a filter for every call number
//! when it is installed, at every boot, and a chain of hundreds of comparisons makes that a
//! millisecond.

use std::collections::BTreeMap;
use std::io;

use libc::sock_filter as Instruction;

use crate::sys::process::install_filter;

/// What the filter does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    Refuse,
    /// Refused if the guard does not hold.
    AllowIf(Guard),
}

/// A condition on the low 32 bits of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    Without {
        argument: u8,
        bits: u32,
    },
    Among {
        argument: u8,
        values: &'static [u32],
    },
    NotAmong {
        argument: u8,
        values: &'static [u32],
    },
    /// Applies the case of the argument's bits in `mask`, or else `otherwise`.
    Switch {
        argument: u8,
        mask: u32,
        cases: &'static [(u32, &'static Guard)],
        otherwise: &'static Guard,
    },
    /// Applies `then` if all 64 bits of a pointer are zero, or else `otherwise`.
    Null {
        argument: u8,
        then: &'static Guard,
        otherwise: &'static Guard,
    },
    Always,
    /// The kernel skips the call and returns this error number; 0 is success.
    Answer(i32),
    /// Holds if the bits of `mask` differ from `value` and `then` holds.
    Unlike {
        argument: u8,
        mask: u32,
        value: u32,
        then: &'static Guard,
    },
    /// One of `values` if the bits of `mask` are `value`; otherwise `then` applies.
    AmongWithin {
        argument: u8,
        mask: u32,
        value: u32,
        values: &'static [u32],
        then: &'static Guard,
    },
}

/// A filter, as BPF instructions.
pub(crate) struct Program(Vec<Instruction>);

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in `seccomp_data` of the call's number, its architecture and its arguments (8 bytes
/// each, low half first).
const NUMBER: u32 = 0;
const ARCHITECTURE_WORD: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
/// For calls with another architecture's numbers, and for those that a confined process never
/// makes.
const FOREIGN: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// What the filter does with a call that has no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unlisted {
    /// The call fails as on a kernel that lacks it, so that programs fall back.
    Absent,
    /// The kernel kills the process.
    Kill,
}

impl Unlisted {
    fn operand(self) -> u32 {
        match self {
            Self::Absent => ABSENT,
            Self::Kill => FOREIGN,
        }
    }
}

impl Program {
    pub(super) fn assemble(verdicts: &BTreeMap<i64, Verdict>, unlisted: Unlisted) -> Self {
        let mut code = vec![
            instruction(LOAD, 0, 0, ARCHITECTURE_WORD),
            instruction(JUMP_EQUAL, 1, 0, ARCHITECTURE),
            instruction(RETURN, 0, 0, FOREIGN),
            instruction(LOAD, 0, 0, NUMBER),
        ];
        code.extend(search(&ranges(verdicts), unlisted));
        Self(code)
    }

    /// Applies the filter to this process and its descendants.
    pub(crate) fn install(&self) -> io::Result<()> {
        install_filter(&self.0)
    }
}

fn instruction(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
    Instruction { code, jt: jump_true, jf: jump_false, k: operand }
}

/// All call numbers from `start` up to the start of the next range.
struct Range {
    start: u32,
    /// `None`: the call is not listed.
    verdict: Option<Verdict>,
}

fn ranges(verdicts: &BTreeMap<i64, Verdict>) -> Vec<Range> {
    let mut ranges = vec![Range { start: 0, verdict: None }];
    for (call, verdict) in verdicts {
        let call = u32::try_from(*call).expect("numbers of system calls are small");
        let last = ranges.last_mut().expect("there is one from the start");
        match (last.start == call, last.verdict == Some(*verdict)) {
            (true, _) => last.verdict = Some(*verdict),
            (false, true) => {}
            (false, false) => ranges.push(Range { start: call, verdict: Some(*verdict) }),
        }
        ranges.push(Range { start: call + 1, verdict: None });
        merge_tail(&mut ranges);
    }
    ranges
}

/// Merges a range into an adjacent one before it that has the same verdict.
fn merge_tail(ranges: &mut Vec<Range>) {
    if let [.., before, middle, _] = ranges.as_slice()
        && before.verdict == middle.verdict
    {
        ranges.remove(ranges.len() - 2);
    }
}

fn search(ranges: &[Range], unlisted: Unlisted) -> Vec<Instruction> {
    if let [range] = ranges {
        return match range.verdict {
            None => vec![instruction(RETURN, 0, 0, unlisted.operand())],
            Some(Verdict::Allow) => vec![instruction(RETURN, 0, 0, ALLOW)],
            Some(Verdict::Refuse) => vec![instruction(RETURN, 0, 0, REFUSE)],
            Some(Verdict::AllowIf(guard)) => guarded(guard),
        };
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (low, first_high) = (search(low, unlisted), high[0].start);
    // A conditional jump reaches 255 instructions; an unconditional one any distance.
    let over_low = u32::try_from(low.len()).expect("a filter has at most 4096 instructions");
    let mut code = vec![instruction(JUMP_AT_LEAST, 0, 1, first_high), instruction(JUMP, 0, 0, over_low)];
    code.extend(low);
    code.extend(search(high, unlisted));
    code
}

/// The instructions of a guard, which return on every path.
fn guarded(guard: Guard) -> Vec<Instruction> {
    let load = |argument: u8| instruction(LOAD, 0, 0, ARGUMENTS + 8 * u32::from(argument));
    let (allow, refuse) = (instruction(RETURN, 0, 0, ALLOW), instruction(RETURN, 0, 0, REFUSE));
    // A match jumps over the remaining comparisons and the return after them.
    let comparisons = |values: &[u32], beyond: usize| -> Vec<Instruction> {
        let distance = |index: usize| u8::try_from(values.len() - 1 - index + beyond).expect("lists are short");
        values.iter().enumerate().map(|(index, value)| instruction(JUMP_EQUAL, distance(index), 0, *value)).collect()
    };
    match guard {
        Guard::Without { argument, bits } => {
            vec![load(argument), instruction(JUMP_ANY_BIT, 0, 1, bits), refuse, allow]
        }
        Guard::Among { argument, values } => {
            [vec![load(argument)], comparisons(values, 1), vec![refuse, allow]].concat()
        }
        Guard::NotAmong { argument, values } => {
            [vec![load(argument)], comparisons(values, 1), vec![allow, refuse]].concat()
        }
        Guard::Switch { argument, mask, cases, otherwise } => {
            let mut code = vec![load(argument), instruction(AND, 0, 0, mask)];
            for (value, guard) in cases {
                let case = guarded(**guard);
                let over = u8::try_from(case.len()).expect("guards are short");
                code.push(instruction(JUMP_EQUAL, 0, over, *value));
                code.extend(case);
            }
            [code, guarded(*otherwise)].concat()
        }
        Guard::Null { argument, then, otherwise } => {
            let (low, mut high) = (load(argument), load(argument));
            high.k += 4;
            let then = guarded(*then);
            let over = u8::try_from(then.len()).expect("guards are short");
            let tests = [low, instruction(JUMP_EQUAL, 0, over + 2, 0), high, instruction(JUMP_EQUAL, 0, over, 0)];
            [tests.to_vec(), then, guarded(*otherwise)].concat()
        }
        Guard::Always => vec![allow],
        Guard::Answer(errno) => vec![instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())],
        Guard::Unlike { argument, mask, value, then } => {
            let head = vec![load(argument), instruction(AND, 0, 0, mask), instruction(JUMP_EQUAL, 0, 1, value), refuse];
            [head, guarded(*then)].concat()
        }
        Guard::AmongWithin { argument, mask, value, values, then } => {
            let within = guarded(Guard::Among { argument, values });
            let over = u8::try_from(within.len()).expect("lists are short");
            let head = vec![load(argument), instruction(AND, 0, 0, mask), instruction(JUMP_EQUAL, 0, over, value)];
            [head, within, guarded(*then)].concat()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in super::super) enum Answer {
        Allow,
        Errno(i32),
        Kill,
    }

    /// Evaluates the program as the kernel does.
    pub(in super::super) fn run(program: &Program, call: u32, arguments: [u64; 6]) -> Answer {
        run_as(program, ARCHITECTURE, call, arguments)
    }

    fn run_as(program: &Program, architecture: u32, call: u32, arguments: [u64; 6]) -> Answer {
        let mut words = vec![call, architecture, 0, 0];
        words.extend(arguments.iter().flat_map(|argument| [*argument as u32, (argument >> 32) as u32]));
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let Instruction { code, jt: jump_true, jf: jump_false, k: operand } = program.0[at];
            let condition = match code {
                LOAD => {
                    accumulator = words[operand as usize / 4];
                    at += 1;
                    continue;
                }
                AND => {
                    accumulator &= operand;
                    at += 1;
                    continue;
                }
                JUMP => {
                    at += 1 + operand as usize;
                    continue;
                }
                RETURN if operand == ALLOW => return Answer::Allow,
                RETURN if operand == FOREIGN => return Answer::Kill,
                RETURN => return Answer::Errno((operand & 0xffff).cast_signed()),
                JUMP_EQUAL => accumulator == operand,
                JUMP_AT_LEAST => accumulator >= operand,
                JUMP_ANY_BIT => accumulator & operand != 0,
                code => panic!("unknown instruction {code:#x}"),
            };
            at += 1 + usize::from(if condition { jump_true } else { jump_false });
        }
    }

    fn sample() -> Program {
        let refuse_odd = Guard::Without { argument: 1, bits: 1 };
        let verdicts = [
            (0, Verdict::Allow),
            (1, Verdict::Allow),
            (2, Verdict::Refuse),
            (5, Verdict::AllowIf(refuse_odd)),
            (6, Verdict::Allow),
        ];
        Program::assemble(&verdicts.into(), Unlisted::Absent)
    }

    #[test]
    fn adjacent_calls_and_gaps_have_their_own_verdicts() {
        let absent = || Answer::Errno(libc::ENOSYS);
        let expected = [
            Answer::Allow,
            Answer::Allow,
            Answer::Errno(libc::EPERM),
            absent(),
            absent(),
            Answer::Allow,
            Answer::Allow,
            absent(),
        ];
        for (call, expected) in (0..).zip(expected) {
            assert_eq!(run(&sample(), call, [0; 6]), expected, "call {call}");
        }
        assert_eq!(run(&sample(), 5, [0, 1, 0, 0, 0, 0]), Answer::Errno(libc::EPERM));
        assert_eq!(run(&sample(), u32::MAX, [0; 6]), absent());
    }

    #[test]
    fn another_architecture_s_calls_end_the_program() {
        assert_eq!(run_as(&sample(), 0x4000_0003, 0, [0; 6]), Answer::Kill);
    }
}
