package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"dsmoe/config/configtest"
	"dsmoe/scripts"
)

// markdown is a Markdown file of the repository, divided into its fenced blocks and its prose.
type markdown struct {
	path   string // from the root of the repository
	text   string
	prose  string  // text without blocks
	blocks []block // in their order
}

// block is a fenced block. The tests know these languages:
//
//	console  lines after "$ " are commands, the lines below are what each prints; see transcript
//	sh       a script, which ends with exit status 0
//	yaml     a job of a CI, whose lines that begin with dsmoe are run
//	go       a part of a tested example, or a program, which prints the lines behind its "// Output:"
//	text     not run: it needs a cluster, a network, Python or a compiler
type block struct {
	lang, text string
}

// repository is the path of the root of the repository, from this package.
var repository = filepath.Join("..", "..")

// readPage reads and divides a page.
func readPage(t *testing.T, path string) markdown {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repository, path))
	require.NoError(t, err)
	p := markdown{path: filepath.ToSlash(path), text: string(raw)}
	inside := false
	for line := range strings.Lines(p.text) {
		lang, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && !inside:
			p.blocks = append(p.blocks, block{lang: lang})
			inside = true
		case fence:
			inside = false
		case inside:
			p.blocks[len(p.blocks)-1].text += line
		default:
			p.prose += line
		}
	}
	require.False(t, inside, "%s: a block has no end", path)
	return p
}

// documents are README.md and the pages under docs.
func documents(t *testing.T) (all []markdown) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all = append(all, readPage(t, "README.md"))
	for _, path := range paths {
		all = append(all, readPage(t, filepath.Join("docs", filepath.Base(path))))
	}
	return all
}

// commandSpan is a command in the prose that names nothing of the user's.
var commandSpan = regexp.MustCompile("`(dsmoe [^`A-Z|{]+)`")

// isName reports whether the words are those of a command, without arguments or flags.
func isName(words []string) bool {
	_, rest, err := newRoot().Find(words[1:])
	return err == nil && len(rest) == 0
}

// longPages are the pages whose blocks take longest to run.
var longPages = []string{"docs/engines.md", "docs/gguf.md", "docs/library.md"}

// TestReadmeExamplesWork_every runs the blocks of README.md and of every page under docs, in their order
// and in one directory for each page, and the commands in the prose. Time and memory are not
// compared. Without -every it leaves longPages out.
func TestReadmeExamplesWork_every(t *testing.T) {
	t.Parallel()
	every := configtest.Every(t)
	for _, p := range documents(t) {
		if slices.Contains(longPages, p.path) && !every {
			continue
		}
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			dir := clone(t)
			for _, b := range p.blocks {
				b.run(t, dir)
			}
			for _, span := range commandSpan.FindAllStringSubmatch(p.prose, -1) {
				if words := strings.Fields(span[1]); !isName(words) {
					out, err := paste(dir, strings.Join(words, " "))
					assert.NoError(t, err, "%s\n%s", span[1], out)
				}
			}
		})
	}
}

// run runs a block in dir. Every block has a language, so that none is passed over unseen.
func (b block) run(t *testing.T, dir string) {
	t.Helper()
	switch b.lang {
	case "console":
		list := transcripts(b.text)
		require.NotEmpty(t, list, b.text)
		for _, x := range list {
			out, _ := paste(dir, x.command)
			assert.Regexp(t, x.output(), out, x.command)
		}
	case "sh":
		out, err := paste(dir, "set -e\n"+b.text)
		assert.NoError(t, err, "%s%s", b.text, out)
	case "yaml":
		var job any
		require.NoError(t, yaml.Unmarshal([]byte(b.text), &job), b.text)
		if strings.Contains(b.text, "dsmoe golden ") { // nothing has recorded the pack before
			require.NoError(t, os.Remove(filepath.Join(dir, "golden")))
		}
		for _, step := range regexp.MustCompile(`(?m)^ +(?:- )?(?:run: )?(dsmoe .*)$`).FindAllStringSubmatch(b.text, -1) {
			out, err := paste(dir, step[1])
			assert.NoError(t, err, "%s\n%s", step[1], out)
		}
	case "go":
		if strings.HasPrefix(b.text, "package main\n") {
			program := filepath.Join(dir, "main.go")
			require.NoError(t, os.WriteFile(program, []byte(b.text), 0o600))
			out, err := paste(repository, "GOFLAGS= go run "+program+" fixtures/v1-base/checkpoint")
			assert.NoError(t, err, out)
			_, want, _ := strings.Cut(flush(b.text), "// Output:\n")
			assert.Equal(t, strings.ReplaceAll(strings.TrimSuffix(want, "}\n"), "// ", ""), out)
			return
		}
		assert.True(t, slices.ContainsFunc(exampleFiles(t), func(code string) bool { return strings.Contains(code, flush(b.text)) }),
			"not a part of an example_test.go:\n%s", b.text)
	default:
		assert.NotEmpty(t, b.lang, b.text)
	}
}

// exampleFiles are the files of tested examples, without indentation.
func exampleFiles(t *testing.T) (all []string) {
	t.Helper()
	for _, path := range []string{"model/example_test.go", "inspect/example_test.go"} {
		code, err := os.ReadFile(filepath.Join(repository, path))
		require.NoError(t, err)
		all = append(all, flush(string(code)))
	}
	return all
}

// flush is code without the tabs before its lines.
func flush(code string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "") }

// transcript is a command after "$ ", which goes on after a "\" at the end of a line, and the lines
// that it prints. "…" stands for any lines.
type transcript struct {
	command string
	lines   []string
}

// transcripts divides a block of console.
func transcripts(block string) (all []transcript) {
	for line := range strings.SplitSeq(strings.TrimSuffix(block, "\n"), "\n") {
		command, begins := strings.CutPrefix(line, "$ ")
		last := len(all) - 1
		switch {
		case begins:
			all = append(all, transcript{command: command})
		case last >= 0 && strings.HasSuffix(all[last].command, `\`):
			all[last].command += "\n" + line
		case last >= 0:
			all[last].lines = append(all[last].lines, line)
		}
	}
	return all
}

// output is the pattern of what the command prints. An empty line before the next command is none of it.
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

// TestReadmeBegins: the bugs that README.md begins with are rows of MISTAKES.md; its first block is what
// a new user runs first, CI runs the same lines, and go install takes this module's command.
func TestReadmeBegins(t *testing.T) {
	t.Parallel()
	readme := readPage(t, "README.md")
	assert.LessOrEqual(t, strings.Count(readme.text, "\n"), 200)
	ci, err := os.ReadFile(filepath.Join(repository, ".ci", "run"))
	require.NoError(t, err)
	first := strings.Split(strings.TrimSpace(readme.blocks[0].text), "\n")
	require.Len(t, first, 2)
	for _, line := range first {
		assert.Regexp(t, "(?m)(^| )"+regexp.QuoteMeta(line)+"$", string(ci)) // perhaps behind settings
	}
	rows := regexp.MustCompile(`\. \*([^*]+)\*\.`).
		FindAllStringSubmatch(strings.ReplaceAll(readme.prose, "\n  ", " "), -1)
	assert.Len(t, rows, 4)
	for _, row := range rows {
		assert.Contains(t, readPage(t, "MISTAKES.md").text, "| "+row[1]+" |")
	}
	detected := readPage(t, filepath.Join("docs", "detection.md")).text // pack, mistakes, dsmoe, top-1, cosine, …, KL
	assert.Regexp(t, `\| v3-trained F32 \| 115 \| 115 \| 76 \| 28 \| \d+ \| \d+ \| 85 \|`, detected)
	out, err := paste(clone(t), strings.Replace(first[0], "go run ./cmd/dsmoe", "dsmoe", 1))
	assert.NoError(t, err, out)
	assert.Equal(t, "go test ./...", first[1])
	require.Contains(t, readme.prose, "`CGO_ENABLED=0 go install ./cmd/dsmoe`")
	out, err = paste(repository, "GOFLAGS= CGO_ENABLED=0 go install -n ./cmd/dsmoe") // -n builds nothing
	assert.NoError(t, err, out)
}

// TestPagesAreReadable: lines outside of blocks have at most 100 columns, and no block is indented,
// where nothing would run it.
func TestPagesAreReadable(t *testing.T) {
	t.Parallel()
	for _, p := range documents(t) {
		before := ""
		for line := range strings.Lines(p.prose) {
			line = strings.TrimSuffix(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 100, "%s: %s", p.path, line)
			assert.False(t, before == "" && strings.HasPrefix(line, "    "), "%s: %s", p.path, line)
			before = line
		}
	}
}

var (
	linkTarget = regexp.MustCompile(`(?:\]\(|(?m:^\[[^\]]+\]: )|src="|srcset=")([^)\s"]+)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors are the names that GitHub gives the headings of a page.
func (p markdown) anchors() map[string]bool {
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(p.prose, -1) {
		all[strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return all
}

// TestLinks: every link inside of the repository leads to a file, and to a heading where it names one; scripts/site.yml has
// a place for every page.
func TestLinks(t *testing.T) {
	t.Parallel()
	others, err := filepath.Glob(filepath.Join(repository, "*.md"))
	require.NoError(t, err)
	pages := append(documents(t), readPage(t, filepath.Join("fixtures", "README.md")),
		readPage(t, filepath.Join("model", "internal", "kernel", "KERNELS.md")))
	site, err := os.ReadFile(filepath.Join(repository, "scripts", "site.yml"))
	require.NoError(t, err)
	for _, path := range others {
		pages = append(pages, readPage(t, filepath.Base(path)))
	}
	links := 0
	for _, p := range pages {
		assert.Contains(t, string(site), ": "+p.path+"\n")
		for _, link := range linkTarget.FindAllStringSubmatch(p.prose, -1) {
			if strings.Contains(link[1], ":") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(link[1], "#")
			if target := filepath.Join(filepath.Dir(p.path), path); path == "" {
				assert.Contains(t, p.anchors(), anchor, p.path)
			} else if _, err := os.Stat(filepath.Join(repository, target)); assert.NoError(t, err, p.path) && anchor != "" {
				assert.Contains(t, readPage(t, target).anchors(), anchor, "%s: %s", p.path, link[1])
			}
		}
	}
	assert.Greater(t, links, 10)
}

// TestFlagsExist: every flag that a page names in its prose is one of some command or recorder, and what is to be installed
// is what a recorder asks for.
func TestFlagsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"--help": true}
	for _, cmd := range everyCommand(newRoot()) {
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.InheritedFlags()} {
			set.VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		}
	}
	recorders := string(scripts.Recorder)
	for _, engine := range scripts.Engines {
		recorder, err := scripts.TraceRecorder(engine)
		require.NoError(t, err)
		recorders += string(recorder)
	}
	for _, p := range documents(t) {
		for _, line := range regexp.MustCompile("pip install .*==.*").FindAllString(p.text, -1) {
			assert.Contains(t, recorders, line, p.path)
		}
		for _, span := range regexp.MustCompile("`(?:[a-z ]+ )?(--[a-z0-9-]+)").FindAllStringSubmatch(p.prose, -1) {
			assert.True(t, known[span[1]] || strings.Contains(recorders, span[1]), "%s: %s", p.path, span[1])
		}
	}
}

// TestMessagesExist: what troubleshooting.md quotes as messages is printed by a command on that page, which
// TestReadmeExamplesWork_every runs, or stands in the source; "…" stands for any text.
func TestMessagesExist(t *testing.T) {
	t.Parallel()
	p := readPage(t, filepath.Join("docs", "troubleshooting.md"))
	var all strings.Builder
	for _, b := range p.blocks {
		all.WriteString(b.text)
	}
	require.NoError(t, filepath.WalkDir(repository, func(path string, d os.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || ext != ".go" && ext != ".py" {
			return err
		}
		raw, err := os.ReadFile(path)
		all.Write(raw)
		return err
	}))
	source, messages := all.String(), 0
	for _, line := range regexp.MustCompile("(?m)^### .*`$").FindAllString(p.text, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
			messages++
			for part := range strings.SplitSeq(m[1], "…") {
				assert.True(t, strings.Contains(source, strings.TrimSpace(part)), m[1])
			}
		}
	}
	assert.GreaterOrEqual(t, messages, 20)
}
