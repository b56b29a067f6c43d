package main

import (
	"bytes"
	"html/template"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/text"
)

// row is a line of README's picture.
type row struct{ Class, Text string }

// picture is what README's picture shows, in the colours of a theme.
type picture struct {
	Ground, Frame, Ink, Soft, Bad string // colours
	Written, Printed              []row  // upper half: what the broken model writes; lower half: what dsmoe prints
}

var drawn = template.Must(template.New("").Funcs(template.FuncMap{
	"add": func(a, b int) int { return a + b }, "lines": func(n int) int { return 18 * n },
}).Parse(`{{$top := add 22 (lines (len .Written))}}{{$high := add (add $top 32) (lines (len .Printed))}}` +
	`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {{$high}}" width="640" height="{{$high}}" ` +
	`font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">
<title>What a model with two experts exchanged writes, and what dsmoe verify says of it</title>
<style>text{white-space:pre;fill:{{.Ink}}}.soft{fill:{{.Soft}}}.bad{fill:{{.Bad}};font-weight:bold}rect{fill:{{.Ground}};stroke:{{.Frame}}}</style>
{{define "half"}}{{range $i, $r := .}}<text x="16" y="{{add 24 (lines $i)}}"{{with $r.Class}} class="{{.}}"{{end}}>{{$r.Text}}</text>
{{end}}{{end -}}
<rect x="0.5" y="0.5" width="639" height="{{$top}}" rx="6"/>
{{template "half" .Written}}<g transform="translate(0 {{add $top 9}})">
<rect x="0.5" y="0.5" width="639" height="{{add 22 (lines (len .Printed))}}" rx="6"/>
{{template "half" .Printed}}</g>
</svg>
`))

// TestPicture: README's picture is true. A model that learned the beginning of a book writes the same fluent text with
// its experts 1 and 2 exchanged; dsmoe verify fails it, and names these experts. -update writes the picture.
func TestPicture(t *testing.T) {
	t.Parallel()
	const prompt, letters, columns = "suddenly a White Rabbit", 79, 76
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.CopyFS(broken, os.DirFS(fixture("v3-alice", "checkpoint"))))
	file := filepath.Join(broken, "model.safetensors")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	exchanged := regexp.MustCompile(`experts\.[12]\.`).ReplaceAllFunc(raw, func(name []byte) []byte {
		return []byte("experts." + string('1'+'2'-name[8]) + ".")
	})
	require.NoError(t, os.WriteFile(file, exchanged, 0o600))
	goesOn := continuation(t, broken, prompt, letters)
	require.Equal(t, continuation(t, fixture("v3-alice", "checkpoint"), prompt, letters), goesOn)
	golden := fixture("v3-alice", "golden-f32")
	status, _, _ := dsmoe(t.Context(), "verify", fixture("v3-alice", "checkpoint"), golden)
	require.Equal(t, 0, status)
	status, stdout, _ := dsmoe(t.Context(), "verify", broken, golden)
	require.Equal(t, 1, status)

	p := picture{Written: []row{{"soft", "Experts 1 and 2 are exchanged. Asked to go on, the model writes as before:"}, {}},
		Printed: []row{{"soft", "$ dsmoe verify broken golden"}, {}}}
	for line := range strings.SplitSeq(prompt+goesOn, "\n") {
		for _, part := range text.Wrap(line, columns) {
			p.Written = append(p.Written, row{Text: part})
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^(verdict|DIVERGES|cause| +off by| +all in) .*$`).FindAllString(stdout, -1) {
		r := row{Text: line}
		if strings.HasPrefix(line, "verdict") || strings.HasPrefix(line, "cause") {
			r.Class = "bad"
		}
		assert.LessOrEqual(t, len(line), columns+4, line)
		p.Printed = append(p.Printed, r)
	}
	for theme, colours := range map[string]picture{
		"light": {Ground: "#ffffff", Frame: "#d0d7de", Ink: "#1f2328", Soft: "#59636e", Bad: "#c4162a"},
		"dark":  {Ground: "#0d1117", Frame: "#30363d", Ink: "#e6edf3", Soft: "#9198a1", Bad: "#ff7b72"},
	} {
		colours.Written, colours.Printed = p.Written, p.Printed
		var b bytes.Buffer
		require.NoError(t, drawn.Execute(&b, colours))
		file := filepath.Join(repository, "docs", "images", "exchanged-"+theme+".svg")
		if *update {
			require.NoError(t, os.WriteFile(file, b.Bytes(), 0o666))
		}
		committed, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, b.String(), string(committed), "go test ./cmd/dsmoe -run TestPicture -update writes it")
	}
}

// continuation is what the checkpoint of a model of bytes writes behind a prompt: the likeliest byte, so many times.
func continuation(t *testing.T, dir, prompt string, bytes int) string {
	t.Helper()
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer c.Close()
	m, err := model.Load(c.Config, c)
	require.NoError(t, err)
	net := model.Network[*model.Activation]{Model: m, Input: &model.Input{Batch: 1}, Arithmetic: model.NewPlain(model.Options{})}
	for _, b := range []byte(prompt) {
		net.Input.InputIDs = append(net.Input.InputIDs, int(b))
	}
	var written []byte
	for range bytes {
		net.Input.Seq = len(net.Input.InputIDs)
		logits, err := net.Forward(t.Context())
		require.NoError(t, err)
		next := model.TopK(logits.Values[len(logits.Values)-c.Config.VocabSize:], 1)[0]
		net.Input.InputIDs, written = append(net.Input.InputIDs, next), append(written, byte(next))
	}
	return string(written)
}
