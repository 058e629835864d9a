//! The exit code that a shell would report of a command.

use sdk::Exit;

/// The exit code of a shell: the command's own code, or 128 plus the signal.
pub fn code(exit: &Exit) -> u8 {
    const UNKNOWN: u8 = 255;
    if exit.exited {
        // The kernel keeps the low eight bits too.
        return (exit.code & 0xff).try_into().unwrap_or(UNKNOWN);
    }
    let name = exit.status.strip_prefix("signal: ").unwrap_or_default();
    let name = name.strip_suffix(" (core dumped)").unwrap_or(name);
    let number = match name {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "trace/breakpoint trap" => 5,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "killed" => 9,
        "user defined signal 1" => 10,
        "segmentation fault" => 11,
        "user defined signal 2" => 12,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        other => match other.strip_prefix("signal ").and_then(|number| number.parse::<u8>().ok()) {
            Some(number) if number < 127 => number,
            _ => return UNKNOWN,
        },
    };
    128 + number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let exit = |code, exited, status: &str| Exit { code, exited, status: status.into(), error: None };
        for (exit, expected) in [
            (exit(0, true, "exit status 0"), 0),
            (exit(7, true, "exit status 7"), 7),
            (exit(-1, false, "signal: killed"), 137),
            (exit(-1, false, "signal: segmentation fault (core dumped)"), 139),
            (exit(-1, false, "signal: signal 34"), 162),
            (exit(-1, false, "stolen"), 255),
        ] {
            assert_eq!(code(&exit), expected, "{exit:?}");
        }
    }
}
