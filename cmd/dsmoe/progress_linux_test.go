package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/remote"
)

// terminal is a terminal of the system, and what was drawn on it.
type terminal struct {
	*os.File
	drawn chan string
}

// openTerminal opens a pseudo-terminal of 80 columns.
func openTerminal(t *testing.T) terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	x := terminal{slave, make(chan string, 1)}
	go func() {
		var drawn bytes.Buffer
		io.Copy(&drawn, master) // ends with an error when the other side is closed
		master.Close()
		x.drawn <- drawn.String()
	}()
	return x
}

// close returns what was drawn.
func (x terminal) close(t *testing.T) string {
	t.Helper()
	require.NoError(t, x.File.Close())
	return <-x.drawn
}

// TestProgressIsDrawnFromTheStart: a bar of terabytes is drawn long before 1 %, with its count.
func TestProgressIsDrawnFromTheStart(t *testing.T) {
	x := openTerminal(t)
	b := cli.Bar{To: x.File}
	b.Set("writing", 1<<30, 1<<40)
	drawn := x.close(t)
	assert.Contains(t, drawn, "writing")
	assert.Contains(t, drawn, "1.0 GiB/1.0 TiB")
}

// TestHelpFits: helps and topics have no line that is longer than the terminal, but for commands and words, and no fewer words.
func TestHelpFits(t *testing.T) {
	for _, command := range [][]string{{"--help"}, {"convert", "--help"}, {"inspect", "mem", "--help"}, {"help", "conversions"},
		{"help", "memory"}, {"help", "verdicts"}} {
		_, wide, _ := dsmoe(t.Context(), command...)
		x := openTerminal(t)
		require.NoError(t, unix.IoctlSetWinsize(int(x.File.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 60}))
		require.Zero(t, run(t.Context(), remote.NewClient(), command, x.File, x.File))
		narrow := strings.ReplaceAll(x.close(t), "\r", "")
		assert.Equal(t, strings.Fields(wide), strings.Fields(narrow))
		for line := range strings.SplitSeq(narrow, "\n") {
			if !strings.HasPrefix(strings.TrimSpace(line), "dsmoe ") && strings.Contains(strings.TrimSpace(line), " ") {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 60, line)
			}
		}
	}
}

// TestProgressFits: no line of a bar is longer than the terminal, whose width may change.
func TestProgressFits(t *testing.T) {
	x := openTerminal(t)
	b := cli.Bar{To: x.File}
	for _, columns := range []uint16{140, 92, 91, 80, 79, 70, 68, 67, 56, 55, 36, 30, 24, 10, 60} {
		require.NoError(t, unix.IoctlSetWinsize(int(x.File.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
		fmt.Fprintf(x.File, "\n%d\n", columns)
		for _, phase := range []string{"comparing", "comparing other files"} {
			b.Set(phase, 333<<30, 1000<<30)
			b.Set(phase, 666<<30, 1000<<30)
		}
	}
	controls := regexp.MustCompile("\x1b\\[[0-9]*K")
	columns, bars, long := 0, 0, 0
	for line := range strings.SplitSeq(controls.ReplaceAllString(x.close(t), ""), "\n") {
		if line = strings.Trim(line, "\r"); strings.Trim(line, "0123456789") == "" && line != "" {
			columns, _ = strconv.Atoi(line)
			continue
		}
		for drawn := range strings.SplitSeq(line, "\r") {
			assert.LessOrEqual(t, utf8.RuneCountInString(drawn), columns, drawn)
			if strings.Contains(drawn, "comparing") {
				bars++
			}
			if strings.Contains(drawn, "comparing other files") {
				long++
			}
		}
	}
	assert.Equal(t, 14+12, bars, "a terminal of 10 columns has none")
	assert.Equal(t, 12, long, "nor have those of 24 and 30, of a phase of more letters")
}

// TestProgressIsForTerminalsOnly: a command draws its progress on stderr if that is a
// terminal, and removes it in the end; a file gets not a byte. The result on stdout is
// the same.
func TestProgressIsForTerminalsOnly(t *testing.T) {
	fixture := func(name string) string { return filepath.Join("..", "..", "fixtures", "v1-base", name) }
	checkpoint := fixture("checkpoint")
	for what, command := range map[string]func(dst string) []string{
		"comparing":      func(string) []string { return []string{"diff", checkpoint, checkpoint} },
		"writing":        func(dst string) []string { return []string{"synth", fixture("checkpoint/config.json"), dst, "--json"} },
		"reading":        func(string) []string { return []string{"inspect", "audit", "--values", checkpoint} },
		"reading, stats": func(string) []string { return []string{"inspect", "stats", checkpoint} },
		"reading, hash":  func(string) []string { return []string{"inspect", "hash", checkpoint} },
		"verifying":      func(string) []string { return []string{"verify", checkpoint, fixture("golden-f32")} },
	} {
		t.Run(what, func(t *testing.T) {
			x := openTerminal(t)
			dst := filepath.Join(t.TempDir(), "out")
			var stdout bytes.Buffer
			status := run(t.Context(), remote.NewClient(), command(dst), &stdout, x.File)
			drawn := x.close(t)
			require.Equal(t, cli.ExitYes, status, drawn)
			word, _, _ := strings.Cut(what, ",")
			assert.Contains(t, drawn, word)
			left := drawn[strings.LastIndex(strings.TrimSuffix(drawn, "\r"), "\r")+1:]
			assert.Empty(t, strings.Trim(strings.ReplaceAll(left, "\x1b[2K", ""), " \r"), "the last line is empty")

			require.NoError(t, os.RemoveAll(dst))
			file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			require.NoError(t, err)
			defer file.Close()
			var plain bytes.Buffer
			require.Equal(t, cli.ExitYes, run(t.Context(), remote.NewClient(), command(dst), &plain, file))
			assert.Equal(t, withoutTime(plain.String()), withoutTime(stdout.String()))
			stat, err := file.Stat()
			require.NoError(t, err)
			assert.Zero(t, stat.Size())
		})
	}
}

// withoutTime cuts the line of verify that says how long it took.
func withoutTime(report string) string {
	before, _, _ := strings.Cut(report, "\ntook ")
	return before
}

// TestTablesAreForTerminals: an inspection is a table on a terminal, unless -o says otherwise.
func TestTablesAreForTerminals(t *testing.T) {
	config := filepath.Join("..", "..", "fixtures", "v1-base", "checkpoint", "config.json")
	for form, want := range map[string]string{"": "CONTEXT  BATCH ", "tsv": "context\tbatch\t"} {
		x := openTerminal(t)
		args := []string{"inspect", "mem", config}
		if form != "" {
			args = append(args, "-o", form)
		}
		status := run(t.Context(), remote.NewClient(), args, x.File, io.Discard)
		assert.Contains(t, x.close(t), want)
		assert.Equal(t, cli.ExitYes, status)
	}
}

// TestTerminals: on a terminal a table leaves out what has no room unless it is to be wide, and verdicts have a
// colour unless it is not wanted.
func TestTerminals(t *testing.T) {
	fixture := func(name string) string { return filepath.Join("..", "..", "fixtures", "v1-base", name) }
	shown := func(args ...string) string {
		x := openTerminal(t)
		require.NoError(t, unix.IoctlSetWinsize(int(x.File.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 60}))
		require.Equal(t, cli.ExitYes, run(t.Context(), remote.NewClient(), args, x.File, io.Discard))
		return x.close(t)
	}
	mem := []string{"inspect", "mem", fixture("checkpoint")}
	assert.Contains(t, shown(mem...), "columns without room: ")
	assert.NotContains(t, shown(append(mem, "--wide")...), "without room")
	assert.NotContains(t, shown(append(mem, "-o", "tsv")...), "without room")

	verify := []string{"verify", fixture("checkpoint"), fixture("golden-f32")}
	for line := range strings.Lines(shown(append(verify, "--color", "never")...)) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\r\n")), 60, line)
	}
	assert.Contains(t, shown(append(verify, "--wide")...), "a column's ≤ 1.12 + 3.5/√rows\r\n")
	const green = "\x1b[1;32mPASS\x1b[0m"
	assert.Contains(t, shown(verify...), green)
	assert.NotContains(t, shown(append(verify, "--color", "never")...), "\x1b")
	t.Setenv("NO_COLOR", "1")
	assert.NotContains(t, shown(verify...), "\x1b")
	assert.Contains(t, shown(append(verify, "--color", "always")...), green)
}
