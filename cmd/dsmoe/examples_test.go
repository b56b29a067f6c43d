package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clone makes a directory that looks like a clone of the repository after a build, as far
// as the examples are concerned, and holds model and golden as the section on CI has them.
func clone(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fixtures, err := filepath.Abs(filepath.Join("..", "..", "fixtures"))
	require.NoError(t, err)
	binary, err := exec.LookPath("dsmoe") // of TestMain
	require.NoError(t, err)
	for name, target := range map[string]string{"fixtures": fixtures, "dsmoe": binary,
		"model": filepath.Join(fixtures, "v1-base", "checkpoint"), "golden": filepath.Join(fixtures, "v1-base", "golden-f32")} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	return dir
}

// paste runs what a user pastes into a shell in dir, and returns all that it prints.
func paste(dir, script string) (string, error) {
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "RUNNER_TEMP="+dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// everyCommand returns the command and all below it, but for those of cobra's own.
func everyCommand(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" && sub.Runnable() {
			all = append(all, everyCommand(sub)...)
		}
	}
	return all
}

// TestHelp: what --help prints fits a screen, topics are those that it names, and no line is too
// long for a terminal.
func TestHelp(t *testing.T) {
	t.Parallel()
	named, topics := map[string]bool{}, map[string]bool{}
	for _, cmd := range everyCommand(newRoot()) {
		var out strings.Builder
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		require.Zero(t, run(t.Context(), args, &out, io.Discard))
		assert.LessOrEqual(t, strings.Count(out.String(), "\n"), 48, cmd.CommandPath())
		for _, topic := range regexp.MustCompile(`dsmoe help (\w+)`).FindAllStringSubmatch(cmd.Long, -1) {
			named[topic[1]] = true
		}
	}
	for _, cmd := range newRoot().Commands() {
		if cmd.IsAdditionalHelpTopicCommand() {
			topics[cmd.Name()] = true
			var out strings.Builder
			require.Zero(t, run(t.Context(), []string{"help", cmd.Name()}, &out, io.Discard))
			assert.Equal(t, cmd.Long, out.String())
			for line := range strings.Lines(cmd.Long) {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 93, line)
			}
		}
	}
	assert.Equal(t, topics, named)
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

// TestReadmeExamplesWork pastes every command of the README, and compares what it prints
// with what stands below it; "…" stands for any lines, and time and memory are not compared.
// Commands of Go are those of TestReadmeBuildsWork.
func TestReadmeExamplesWork(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	dir := clone(t)
	blocks, prose := indented(string(readme))
	ran, jobs := 0, 0
	for _, x := range transcripts(blocks) {
		out, _ := paste(dir, x.command)
		assert.Regexp(t, x.output(), out, x.command)
		ran++
	}
	for _, line := range regexp.MustCompile("`dsmoe [^`]+`").FindAllString(prose, -1) {
		line = strings.ReplaceAll(strings.Trim(line, "`"), "\n", " ")
		if !regexp.MustCompile(`\b[A-Z]+\b|\|`).MatchString(line) {
			out, err := paste(dir, line)
			assert.NoError(t, err, "%s\n%s", line, out)
			ran++
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^ +- (?:run: )?((?:\$RUNNER_TEMP/|\./)dsmoe .*)$`).FindAllStringSubmatch(blocks, -1) {
		out, err := paste(dir, line[1])
		assert.NoError(t, err, "%s\n%s", line[1], out)
		jobs++
	}
	assert.Equal(t, 6, jobs, "commands of the jobs for GitHub and GitLab")
	script := regexp.MustCompile(`(?ms)^status=0$.*?^exit \$status$`).FindString(blocks)
	out, err := paste(dir, script)
	assert.NoError(t, err, "%s\n%s", script, out)
	assert.Greater(t, ran, 10)
}

// TestReadmeBuildsWork checks the README's commands of Go: go build takes its flags and
// packages, as -n tells without building, and what go run is to run works.
func TestReadmeBuildsWork(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	builds := regexp.MustCompile("(CGO_ENABLED=0 )?go build [^`\n]+").FindAllString(string(readme), -1)
	assert.Len(t, builds, 2)
	for _, line := range builds {
		out, err := paste(root, strings.Replace(line, "go build", "go build -n", 1))
		assert.NoError(t, err, "%s\n%s", line, out)
		assert.Contains(t, out, "dsmoe/cmd/dsmoe", line)
	}
	runs := regexp.MustCompile("go run ./cmd/dsmoe [^`\n]+").FindAllString(string(readme), -1)
	assert.Len(t, runs, 1)
	for _, line := range runs {
		out, err := paste(clone(t), strings.Replace(line, "go run ./cmd/dsmoe", "./dsmoe", 1))
		assert.NoError(t, err, "%s\n%s", line, out)
	}
}

// indented divides a Markdown text into its indented blocks, without the indentation, and
// the rest.
func indented(markdown string) (blocks, rest string) {
	for line := range strings.Lines(markdown) {
		if code, ok := strings.CutPrefix(line, "    "); ok || line == "\n" {
			blocks += code
		} else {
			rest += line
			blocks += "\x00\n" // ends a block
		}
	}
	return blocks, rest
}

// transcript is a command after "$ ", and the lines below it.
type transcript struct {
	command string
	lines   []string
}

// transcripts finds them in blocks of Markdown.
func transcripts(blocks string) (all []transcript) {
	for block := range strings.SplitSeq(blocks, "\x00\n") {
		first := len(all)
		for line := range strings.Lines(block) {
			line = strings.TrimSuffix(line, "\n")
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				all = append(all, transcript{command: command})
			} else if len(all) > first {
				x := &all[len(all)-1]
				x.lines = append(x.lines, line)
			}
		}
	}
	return all
}

// output is the pattern of what the command prints.
func (x transcript) output() string {
	lines := slices.Clone(x.lines)
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	pattern := "^"
	for _, line := range lines {
		switch {
		case line == "…":
			pattern += "(?s:.*\n)"
		case strings.HasPrefix(line, "took "):
			pattern += "took .*\n"
		default:
			pattern += regexp.QuoteMeta(line) + "\n"
		}
	}
	return pattern + "$"
}
