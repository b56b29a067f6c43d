package main

import (
	"dsmoe/convert/remote"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clone makes a directory that looks like a clone of the repository, as far as the examples are
// concerned.
func clone(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fixtures, err := filepath.Abs(filepath.Join("..", "..", "fixtures"))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(fixtures, filepath.Join(dir, "fixtures")))
	require.NoError(t, os.Symlink(built(), filepath.Join(dir, "dsmoe")))
	python := []byte("#!/bin/sh\n" + // what dsmoe golden runs; its last word is PACK
		"test -s \"$1\" && for pack; do :; done && ln -s \"$PWD/fixtures/v3/golden-f32\" \"$pack\"\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "python3"), python, 0o700))
	return dir
}

// built returns the path of a dsmoe without the race detector, which would slow down the many pasted commands: the dsmoe of
// scripts, or, if that has the detector, one that is built beside it and removed with it.
var built = sync.OnceValue(func() string {
	ofScripts, err := exec.LookPath("dsmoe")
	if err != nil {
		panic(err)
	}
	info, _ := debug.ReadBuildInfo()
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return ofScripts
	}
	path := filepath.Join(filepath.Dir(ofScripts), "built")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(string(out))
	}
	return path
})

// paste runs what a user pastes into a shell in dir, and returns all that it prints.
func paste(dir, script string) (string, error) {
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// everyCommand returns the command and all below it, but for those of cobra's own and the hidden one.
func everyCommand(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" && sub.Runnable() && !sub.Hidden {
			all = append(all, everyCommand(sub)...)
		}
	}
	return all
}

// TestHelp: what --help prints fits a terminal of 80 columns, no list of flags is long, no flag's text begins with the
// name of its value, which stands before it, and topics are those that it names.
func TestHelp(t *testing.T) {
	t.Parallel()
	named, topics := map[string]bool{}, map[string]bool{}
	for _, cmd := range everyCommand(newRoot()) {
		var out strings.Builder
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		require.Zero(t, run(t.Context(), remote.NewClient(), args, &out, io.Discard))
		requireWidth(t, out.String())
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name, usage := pflag.UnquoteUsage(f)
			assert.False(t, name != "" && name != f.Value.Type() && strings.HasPrefix(usage, name), "%s --%s: %s", cmd.Name(), f.Name, usage)
		})
		for list := range strings.SplitSeq(out.String(), "\n\n") {
			assert.LessOrEqual(t, len(regexp.MustCompile(`(?m)^ +(-\w, )?--`).FindAllString(list, -1)), 10, list)
		}
		for _, topic := range regexp.MustCompile(`dsmoe help (\w+)`).FindAllStringSubmatch(cmd.Long, -1) {
			named[topic[1]] = true
		}
	}
	for _, cmd := range newRoot().Commands() {
		if cmd.IsAdditionalHelpTopicCommand() {
			topics[cmd.Name()] = true
			var out strings.Builder
			require.Zero(t, run(t.Context(), remote.NewClient(), []string{"help", cmd.Name()}, &out, io.Discard))
			assert.Equal(t, cmd.Long, out.String())
			requireWidth(t, out.String())
		}
	}
	assert.Equal(t, topics, named)
}

// requireWidth demands lines of at most 80 columns.
func requireWidth(t *testing.T, help string) {
	t.Helper()
	for line := range strings.Lines(help) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

// TestHelpExamplesWork pastes every line of every command's examples, one after the other.
func TestHelpExamplesWork(t *testing.T) {
	t.Parallel()
	for _, cmd := range everyCommand(newRoot()) {
		t.Run(cmd.CommandPath(), func(t *testing.T) {
			t.Parallel()
			dir := clone(t)
			require.NotEmpty(t, cmd.Example)
			for line := range strings.Lines(cmd.Example) {
				assert.Regexp(t, `^  dsmoe `, line)
				out, err := paste(dir, line)
				assert.NoError(t, err, "%s%s", line, out)
			}
		})
	}
}
