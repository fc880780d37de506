//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// escape ends a shell's machine however stuck it is: Ctrl-].
const escape = 0x1d

// A terminal is this process's own, connected to a shell in a machine.
type terminal struct {
	saved  *unix.Termios // nil when standard input is no terminal
	resize chan os.Signal
}

// connectTerminal passes on what is typed until restore, and calls stop when the user wants out.
func connectTerminal(m *machine, stop func()) *terminal {
	t := &terminal{resize: make(chan os.Signal, 1)}
	fd := int(os.Stdin.Fd())
	if settings, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		saved := *settings
		t.saved = &saved
		// As cfmakeraw(3).
		settings.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP |
			unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		settings.Oflag &^= unix.OPOST
		settings.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		settings.Cflag = settings.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
		unix.IoctlSetTermios(fd, unix.TCSETS, settings)
		say("a shell in the machine; Ctrl-] ends it\r")
		signal.Notify(t.resize, unix.SIGWINCH)
		m.tellSize(fd)
		go func() {
			for range t.resize {
				m.tellSize(fd)
			}
		}()
	}
	go t.pass(m.tty, stop)
	return t
}

// pass copies standard input to the shell. At its end the shell gets a Ctrl-D.
func (t *terminal) pass(to io.Writer, stop func()) {
	buf := make([]byte, 4096)
	for {
		n, err := os.Stdin.Read(buf)
		if t.saved != nil && bytes.IndexByte(buf[:n], escape) >= 0 {
			stop()
			return
		}
		to.Write(buf[:n])
		if err != nil {
			to.Write([]byte{4})
			return
		}
	}
}

func (m *machine) tellSize(fd int) {
	if size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
		m.tell("size %d %d", size.Row, size.Col)
	}
}

func (t *terminal) restore() {
	signal.Stop(t.resize)
	if t.saved != nil {
		unix.IoctlSetTermios(int(os.Stdin.Fd()), unix.TCSETS, t.saved)
	}
}
