//! [`run`]: runs a command and passes its output on. If the output stops for too long, the command and its children are killed.
//! The limit is on silence, not on time, because the time of a step depends on the machine.

use anyhow::{Context, Result, anyhow, ensure};
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs a command to its end, and passes its output on to `show`, including standard error.
pub(super) fn run(mut command: Command, silence_max: Duration, show: &mut impl Write) -> Result<ExitStatus> {
    let (mut output, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("it cannot be started")?;
    // The command holds the writing ends of the pipe, which must be closed before the reader ends.
    drop(command);
    let (send_line, lines) = channel();
    let group = child.id();
    let watcher = std::thread::spawn(move || {
        let is_silent = loop {
            match lines.recv_timeout(silence_max) {
                Ok(()) => {}
                Err(error) => break error == RecvTimeoutError::Timeout,
            }
        };
        if is_silent {
            end(group);
        }
        is_silent
    });
    let (mut buffer, mut last) = ([0; 4096], Vec::new());
    loop {
        let count = output.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        show.write_all(&buffer[..count])?;
        show.flush()?;
        last.extend_from_slice(&buffer[..count]);
        last.drain(..last.len().saturating_sub(LAST_BYTES));
        let _ = send_line.send(());
    }
    let status = child.wait()?;
    drop(send_line);
    let was_silent = watcher.join().map_err(|_| anyhow!("its watcher panicked"))?;
    ensure!(
        !was_silent,
        "it printed nothing for {} s and was ended; the last that it printed:\n{}",
        silence_max.as_secs_f32(),
        String::from_utf8_lossy(&last).trim_end()
    );
    Ok(status)
}

/// Kills all processes of a group. Processes that cannot be killed keep the output open; it is then read to its end.
fn end(group: u32) {
    let (program, args) = match cfg!(unix) {
        true => ("sh", ["-c".to_string(), format!("kill -KILL -{group}")].to_vec()),
        false => ("taskkill", ["/F", "/T", "/PID", &group.to_string()].map(String::from).to_vec()),
    };
    if let Err(error) = Command::new(program).args(args).status() {
        println!("{program}: {error}");
    }
}

/// A command without output for this long has hung: no crate or test takes as long, under miri or on a slow machine either.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(20 * 60);

/// The number of bytes of the output's end that an error repeats.
const LAST_BYTES: usize = 2000;

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::time::Instant;

    fn run_script(script: &str, silence_max: Duration) -> (Result<ExitStatus>, String) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut shown = Vec::new();
        let ended = run(command, silence_max, &mut shown);
        (ended, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn output_and_status_are_passed_on() {
        let (ended, shown) = run_script("echo out; echo err >&2; exit 7", Duration::from_secs(60));
        assert_eq!((ended.unwrap().code(), shown.as_str()), (Some(7), "out\nerr\n"));
    }

    #[test]
    fn who_is_silent_is_ended_with_all_that_it_started() {
        let start = Instant::now();
        // It returns after every process has closed the output, including the one in the background.
        let (ended, shown) = run_script("sleep 600 & echo begun; wait", Duration::from_secs(1));
        let said = ended.unwrap_err().to_string();
        assert!(said.starts_with("it printed nothing for 1 s") && said.ends_with("\nbegun"), "{said}");
        assert_eq!(shown, "begun\n");
        assert!(start.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn who_takes_long_but_speaks_is_let_be() {
        let script = "for _ in 1 2 3 4 5 6 7; do echo more; sleep 0.5; done";
        let (ended, shown) = run_script(script, Duration::from_secs(3));
        assert!(ended.unwrap().success());
        assert_eq!(shown, "more\n".repeat(7));
    }
}
