package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/remote"
	"dsmoe/convert/remote/remotetest"
)

// TestMain is the main function of the tests and, under the name dsmoe, of the command. Both live
// shortly on little memory: they collect garbage less often than a user's dsmoe. Commands run side by
// side, each on one processor unless GOMAXPROCS is set.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Setenv("GOGC", "400")                 // commands that run in this process leave it so
	os.Setenv("GORACE", "atexit_sleep_ms=0") // a command with the race detector waits a second at its exit
	os.Setenv("GOMAXPROCS", cmp.Or(os.Getenv("GOMAXPROCS"), "1"))
	testscript.Main(m, map[string]func(){"dsmoe": main})
}

// TestScripts_every runs the command line as a user does. Beyond testscript's own
// commands there are those of scriptCommands; $FIXTURES is the folder of fixtures. Behind "[!every] stop" a
// script tries further forms, families and combinations.
func TestScripts_every(t *testing.T) {
	fixtures, err := filepath.Abs(filepath.Join("..", "..", "fixtures"))
	require.NoError(t, err)
	c := newSchemaChecker(t)
	t.Cleanup(func() { c.finish(t) })
	every := configtest.Every(t)
	scripts, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	require.NoError(t, err)
	scripts = slices.DeleteFunc(scripts, func(name string) bool {
		text, err := os.ReadFile(name)
		return err == nil && every && !bytes.Contains(text, []byte("every]"))
	})
	testscript.Run(t, testscript.Params{
		Files:              scripts,
		RequireUniqueNames: true,
		Cmds:               scriptCommands(c),
		Condition: func(name string) (bool, error) {
			if name != "every" {
				return false, fmt.Errorf("no condition %q", name)
			}
			return every, nil
		},
		Setup: func(e *testscript.Env) error {
			c.scripts.Add(1)
			e.Setenv("FIXTURES", fixtures)
			e.Setenv("GORACE", os.Getenv("GORACE"))
			e.Setenv("GOMAXPROCS", os.Getenv("GOMAXPROCS"))
			return nil
		},
	})
}

func scriptCommands(c *schemaChecker) map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	return map[string]func(ts *testscript.TestScript, neg bool, args []string){
		"exits":    c.exits,
		"json":     jsonCommand,
		"copytree": copytreeCommand,
		"replace":  replaceCommand,
		"cut":      cutCommand,
		"swap":     swapCommand,
		"poke":     pokeCommand,
		"rotate":   rotateCommand,
		"imatrix":  imatrixCommand,
		"hub":      hubCommand,
		"store":    storeCommand,
	}
}

// exits STATUS COMMAND… runs a command that must exit with exactly this status. JSON that it prints must be of
// its schema.
func (c *schemaChecker) exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND…")
	}
	status := 0
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if want, err := strconv.Atoi(args[0]); err != nil || status != want {
		ts.Fatalf("exit status %d, want %s", status, args[0])
	}
	c.check(ts, args, ts.ReadFile("stdout"))
}

// json FILE [PATH VALUE] checks that the file (or stdout) is one JSON document, and
// that PATH, keys and indices with dots between, leads to VALUE, which is JSON too.
func jsonCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 && len(args) != 3 {
		ts.Fatalf("usage: json FILE [PATH VALUE]")
	}
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	d.UseNumber()
	var v any
	ts.Check(d.Decode(&v))
	if _, err := d.Token(); err != io.EOF {
		ts.Fatalf("%s: more than one JSON document", args[0])
	}
	if len(args) == 1 {
		return
	}
	for key := range strings.SplitSeq(args[1], ".") {
		v = member(ts, v, key)
	}
	got, err := json.Marshal(v)
	ts.Check(err)
	var want bytes.Buffer
	ts.Check(json.Compact(&want, []byte(args[2])))
	if string(got) != want.String() {
		ts.Fatalf("%s is %s, want %s", args[1], got, want.String())
	}
}

// member returns v[key]; len is the length of a list.
func member(ts *testscript.TestScript, v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		x, ok := v[key]
		if !ok {
			ts.Fatalf("no key %q", key)
		}
		return x
	case []any:
		if key == "len" {
			return len(v)
		}
		i, err := strconv.Atoi(key)
		ts.Check(err)
		if i < 0 || i >= len(v) {
			ts.Fatalf("no index %d, length %d", i, len(v))
		}
		return v[i]
	}
	ts.Fatalf("%q leads nowhere", key)
	return nil
}

// copytree SRC DST copies a directory.
func copytreeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: copytree SRC DST")
	}
	ts.Check(os.CopyFS(ts.MkAbs(args[1]), os.DirFS(ts.MkAbs(args[0]))))
}

// hub FAULTS NAME=DIR… starts a hub with the directories as repositories org/NAME, of whose requests a share of
// FAULTS percent fails, until the script ends.
func hubCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: hub FAULTS NAME=DIR…")
	}
	root := ts.MkAbs(".hub")
	linkAll(ts, args[1:], filepath.Join(root, "org"))
	h := remotetest.NewHub(os.DirFS(root))
	failing(ts, h, args[0])
	ts.Setenv("HF_ENDPOINT", h.API.URL)
	ts.Setenv("XDG_CACHE_HOME", ts.MkAbs(".cache"))
}

// store FAULTS NAME=DIR… starts an object store with the directories as buckets, of whose requests a share of
// FAULTS percent fails, until the script ends.
func storeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: store FAULTS NAME=DIR…")
	}
	root := ts.MkAbs(".store")
	linkAll(ts, args[1:], root)
	h, settings := remotetest.NewStore(remotetest.Directory(root))
	failing(ts, h, args[0])
	for name, value := range settings {
		ts.Setenv(name, value)
	}
}

// linkAll makes links in dir of arguments NAME=DIR.
func linkAll(ts *testscript.TestScript, args []string, dir string) {
	ts.Check(os.MkdirAll(dir, 0o777))
	for _, arg := range args {
		name, target, _ := strings.Cut(arg, "=")
		ts.Check(os.Symlink(ts.MkAbs(target), filepath.Join(dir, name)))
	}
}

// failing has a share of a server's requests fail, and closes it when the script ends.
func failing(ts *testscript.TestScript, h *remotetest.Hub, percent string) {
	ts.Defer(h.Close)
	faults, err := strconv.Atoi(percent)
	ts.Check(err)
	h.Fail(faults)
}

// imatrix FILE NAME=N… writes an importance matrix as llama.cpp did before GGUF: of each tensor N values,
// value i being i·37 mod 101.
func imatrixCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: imatrix FILE NAME=N…")
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(args)-1))
	for _, arg := range args[1:] {
		name, size, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(size)
		ts.Check(err)
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(name))), name...)
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 1), uint32(n))
		for i := range n {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(i*37%101)))
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}

// replace FILE OLD NEW replaces a text that must be in the file.
func replaceCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o666))
}

// cut FILE SIZE cuts a file to its first bytes.
func cutCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: cut FILE SIZE")
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), size))
}

// swap FILE TENSOR TENSOR exchanges the data of two tensors of one size.
func swapCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: swap FILE TENSOR TENSOR")
	}
	data := []byte(ts.ReadFile(args[0]))
	a, b := tensorData(ts, args[0], data, args[1]), tensorData(ts, args[0], data, args[2])
	if len(a) != len(b) {
		ts.Fatalf("%s and %s differ in size", args[1], args[2])
	}
	held := bytes.Clone(a)
	copy(a, b)
	copy(b, held)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o666))
}

// rotate FILE TENSOR BYTES moves the first bytes of a tensor's data, such as a row, behind the last.
func rotateCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: rotate FILE TENSOR BYTES")
	}
	data := []byte(ts.ReadFile(args[0]))
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	rows := tensorData(ts, args[0], data, args[1])
	copy(rows, slices.Concat(rows[n:], rows[:n]))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o666))
}

// poke FILE TENSOR BYTE HEX overwrites a tensor's data from a byte on.
func pokeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: poke FILE TENSOR BYTE HEX")
	}
	data := []byte(ts.ReadFile(args[0]))
	at, err := strconv.Atoi(args[2])
	ts.Check(err)
	value, err := hex.DecodeString(args[3])
	ts.Check(err)
	copy(tensorData(ts, args[0], data, args[1])[at:], value)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o666))
}

// tensorData returns a tensor's bytes within its file's.
func tensorData(ts *testscript.TestScript, file string, data []byte, name string) []byte {
	f, err := format.OpenFile(ts.MkAbs(file), checkpoint.FormatOf(file).Open)
	ts.Check(err)
	defer f.Close()
	info, offset, ok := f.Lookup(name)
	if !ok {
		ts.Fatalf("%s has no tensor %s", file, name)
	}
	return data[offset : offset+info.Bytes()]
}

// dsmoe runs a command line in this process.
func dsmoe(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(ctx, remote.NewClient(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// TestInterruptedRunsGoOn: an interruption leaves nothing under the final name, says what it leaves
// and which command continues it, and that then ends as if there had been none.
func TestInterruptedRunsGoOn(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fixture := filepath.Join("..", "..", "fixtures", "v1-base", "checkpoint")
	for command, args := range map[string][]string{
		"synth":   {"synth", filepath.Join(fixture, "config.json")},
		"convert": {"convert", fixture, "--include", "*"},
	} {
		dir := filepath.Join(t.TempDir(), "it's here")
		require.NoError(t, os.Mkdir(dir, 0o755))
		args = append(args, filepath.Join(dir, "out"))
		typed := "dsmoe " + strings.Join(args[:len(args)-1], " ") + " '" + strings.ReplaceAll(dir, "'", `'\''`) + "/out'"
		typed = strings.Replace(typed, "--include *", "--include '*'", 1)
		left := regexp.MustCompile(`^interrupted: the unfinished output is in ".*/it's here/\.out\.partial", [0-9.]+ [KM]iB on disk$`)
		status, stdout, stderr := dsmoe(ctx, args...)
		assert.Equal(t, cli.ExitInterrupted, status, command)
		assert.Empty(t, stdout)
		cause, hint, _ := strings.Cut(strings.TrimPrefix(stderr, "dsmoe: "), "\n")
		assert.Regexp(t, left, cause)
		assert.Equal(t, "hint: "+typed+" continues it\n", hint)
		assert.Equal(t, []string{".out.journal", ".out.partial"}, entries(t, dir))
		status, stdout, _ = dsmoe(ctx, append(args, "--json")...)
		assert.Equal(t, cli.ExitInterrupted, status, command)
		var document cli.ErrorDocument
		require.NoError(t, json.Unmarshal([]byte(stdout), &document))
		assert.Equal(t, command, document.Error.Thing)
		assert.Regexp(t, left, document.Error.Cause)
		assert.Equal(t, typed+" --json continues it", document.Error.Hint)
		if command == "convert" {
			_, _, stderr = dsmoe(ctx, append(args, "--no-resume")...)
			assert.True(t, strings.HasSuffix(stderr, "hint: "+typed+" continues it\n"), stderr)
			_, _, stderr = dsmoe(ctx, append(args, "--dry-run")...)
			assert.Empty(t, stderr)
		}
		status, _, stderr = dsmoe(context.Background(), args...)
		assert.Equal(t, cli.ExitYes, status, stderr)
		assert.Equal(t, []string{"out"}, entries(t, dir))
		status, _, stderr = dsmoe(context.Background(), "convert", "--check", filepath.Join(dir, "out"))
		assert.Equal(t, cli.ExitYes, status, stderr)
		status, _, stderr = dsmoe(ctx, args...)
		assert.Equal(t, cli.ExitInterrupted, status, command)
		assert.Equal(t, "dsmoe: interrupted\n", stderr, "nothing is left")
	}
}

// entries lists a directory.
func entries(t *testing.T, dir string) (names []string) {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestEveryCommandIsDocumented: examples, exit status, --json, but for commands that print what a script does.
func TestEveryCommandIsDocumented(t *testing.T) {
	for _, cmd := range everyCommand(newRoot()) {
		name := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "dsmoe"), " ")
		t.Run(name, func(t *testing.T) {
			status, help, stderr := dsmoe(t.Context(), append(strings.Fields(name), "--help")...)
			assert.Equal(t, cli.ExitYes, status)
			assert.Empty(t, stderr)
			for _, part := range []string{"Usage:", "Examples:", "EXIT STATUS", "  130  interrupted"} {
				assert.Contains(t, help, part)
			}
			prints := strings.HasPrefix(name, "golden") || name == "trace-script"
			assert.Equal(t, name != "" && !prints, strings.Contains(help, "--json"))
			text, _, _ := strings.Cut(help, "Flags:")
			for line := range strings.Lines(text) {
				assert.LessOrEqual(t, len(line), 90, line)
			}
		})
	}
}

// TestErrorsAreSafeToPrint: what a command line holds is quoted, and one line.
func TestErrorsAreSafeToPrint(t *testing.T) {
	const hostile = "a\x1b[2J\nb"
	for _, args := range [][]string{{"inspect", hostile}, {"inspect", "arch", hostile}, {"synth", hostile, "x"}, {hostile}, {"--" + hostile}} {
		status, stdout, stderr := dsmoe(t.Context(), args...)
		assert.Equal(t, cli.ExitUnknown, status, "%q", args)
		assert.Empty(t, stdout, "%q", args)
		assert.NotContains(t, stderr, "\x1b", "%q", args)
		lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
		assert.LessOrEqual(t, len(lines), 2, "%q", args)
		assert.Contains(t, lines[0], `\x1b[2J`, "%q", args)
	}
}

// TestDefaultsAreShown: the help says what a flag is if it is not given.
func TestDefaultsAreShown(t *testing.T) {
	_, help, _ := dsmoe(t.Context(), "convert", "--help")
	for _, part := range []string{"(default keep)", "(default 5GB; none for gguf)", "(default 512MiB)", "(default true)"} {
		require.Contains(t, strings.Join(strings.Fields(help), " "), part)
	}
	_, help, _ = dsmoe(t.Context(), "synth", "--help")
	for _, part := range []string{"(default synthetic)", "(default 5GB)"} {
		require.Contains(t, strings.Join(strings.Fields(help), " "), part)
	}
}

// TestSynthShards writes the same weights in one file and in several, and compares
// every tensor.
func TestSynthShards(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join("..", "..", "fixtures", "v1-base", "checkpoint", "config.json")
	open := func(name string, args ...string) *checkpoint.Checkpoint {
		path := filepath.Join(dir, name)
		status, _, stderr := dsmoe(t.Context(), append([]string{"synth", config, path, "--seed", "3"}, args...)...)
		require.Equal(t, cli.ExitYes, status, stderr)
		c, err := checkpoint.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	one, many := open("one"), open("many", "--max-shard-size", "100KB")
	assert.Len(t, one.Inventory.Files, 1)
	assert.Greater(t, len(many.Inventory.Files), 5)
	for info := range one.Tensors() {
		a, err := one.Tensor(info.Name)
		require.NoError(t, err)
		b, err := many.Tensor(info.Name)
		require.NoError(t, err)
		require.Equal(t, a, b, info.Name)
	}
}
