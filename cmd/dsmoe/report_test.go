package main

import (
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
)

// fixture is the path of something in the fixtures.
func fixture(parts ...string) string {
	return filepath.Join(slices.Concat([]string{"..", "..", "fixtures"}, parts)...)
}

// drawings reads a page or a drawing as XML, strictly, and returns the titles of its drawings and all of
// its text. It asks for nothing from anywhere.
func drawings(t *testing.T, document string) (titles []string, words string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(document))
	var all strings.Builder
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return titles, all.String()
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.CharData:
			all.Write(x)
		case xml.StartElement:
			assert.NotContains(t, []string{"script", "img", "iframe"}, x.Name.Local)
			for _, a := range x.Attr {
				if a.Name.Local == "aria-label" {
					titles = append(titles, a.Value)
				}
				if a.Name.Local == "href" || a.Name.Local == "src" {
					assert.Regexp(t, "^(#|data:,$)", a.Value)
				}
			}
		}
	}
}

// made is a report and its page.
type made struct {
	Findings []struct {
		ID              string
		Layer           *int
		Experts         []int
		Tensor, Text    string
		Value, Expected *float64
	}
	Checked    []string
	NotChecked []string `json:"not_checked"`
	Arch       *struct{ Total struct{ Parameters int64 } }
	Summary    *struct{ Tensors int }
	Audit      *struct{ Clean bool }
	Stats      *struct{ Tensors []struct{ Name string } }
	Experts    *struct{ Layers []struct{ Similarity any } }
	Router     *struct {
		Layers []struct{ Singular []float64 }
	}
	Routing *struct{ Tokens int }

	status int
	json   string
	page   string
	titles []string
	words  string
}

// ids are those of the findings.
func (m *made) ids() (all []string) {
	for _, f := range m.Findings {
		all = append(all, f.ID)
	}
	return all
}

// makeReport runs the command, as JSON and with a page.
func makeReport(t *testing.T, args ...string) *made {
	t.Helper()
	m := &made{}
	html := filepath.Join(t.TempDir(), "report.html")
	var stderr string
	m.status, m.json, stderr = dsmoe(t.Context(), slices.Concat([]string{"inspect", "report", "--json", "--html", html}, args)...)
	require.Empty(t, stderr)
	require.NoError(t, json.Unmarshal([]byte(m.json), m))
	m.page = readFile(t, html)
	m.titles, m.words = drawings(t, m.page)
	return m
}

// TestReportOfHealthyCheckpoints_every: no finding, what was looked at is said, all parts are there, and no
// byte depends on the number of threads.
func TestReportOfHealthyCheckpoints_every(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for i, args := range [][]string{
		{fixture("v1-base", "checkpoint"), "--random", "2x16", "--seed", "7"},
		{fixture("v2-lite", "checkpoint")},
		{fixture("v3", "checkpoint-fused"), "--golden", fixture("v3", "golden-f32")},
		{fixture("v3-fp8", "checkpoint"), "--tokens", fixture("v3-fp8", "golden-f32", "inputs.safetensors")},
	} {
		if i%2 == 0 && !configtest.Every(t) {
			continue
		}
		runtime.GOMAXPROCS(1)
		one := makeReport(t, args...)
		runtime.GOMAXPROCS(5)
		m := makeReport(t, args...)
		assert.Equal(t, one.json, m.json, args)
		assert.Equal(t, one.page, m.page, args)

		assert.Equal(t, cli.ExitYes, m.status, args)
		assert.Contains(t, m.json, `"findings": [],`)
		assert.Contains(t, m.words, "NOTHING FOUND")
		assert.True(t, m.Audit.Clean)
		assert.Positive(t, m.Arch.Total.Parameters)
		assert.Positive(t, m.Summary.Tensors)
		for _, part := range []string{"parameters of each module, and how many of them a token uses", "how like each expert is to the one that it is most like",
			"norm of each expert", "stable rank of each expert", "norm of each row of the routers", "singular values of the routers",
			"largest magnitude in each layer's tensors", "bytes of each layer by dtype", "bytes of each layer by file"} {
			assert.Contains(t, m.titles, part, args)
		}
		assert.Equal(t, len(m.Experts.Layers), strings.Count(strings.Join(m.titles, "\n"), "pairs of experts of layer "))
		assert.Nil(t, m.Experts.Layers[0].Similarity, "many numbers")
		assert.NotEmpty(t, m.Router.Layers[0].Singular)
		for _, tensor := range m.Stats.Tensors {
			assert.NotRegexp(t, `experts`, tensor.Name)
		}
		for _, s := range append(m.Checked, m.NotChecked...) {
			assert.Contains(t, m.words, s)
		}
		if len(args) > 1 {
			assert.Positive(t, m.Routing.Tokens)
			assert.Contains(t, strings.Join(m.titles, "\n"), "load of each expert by ")
		} else {
			assert.Nil(t, m.Routing)
			assert.Contains(t, m.NotChecked, "how tokens are routed: none were given")
		}
	}
}

// TestReportOfDenseModel: what is not there is said not to be.
func TestReportOfDenseModel(t *testing.T) {
	m := makeReport(t, fixture("torch-bin", "checkpoint"))
	assert.Equal(t, cli.ExitYes, m.status)
	assert.Nil(t, m.Experts)
	assert.Nil(t, m.Router)
	assert.Subset(t, m.NotChecked, []string{"experts: there are none", "routers: there are none"})
	assert.Contains(t, m.Checked, "33 CRC-32 checksums of archive entries")
}

// TestReportOfSelection: only what is selected is read, and the rest said to be left out.
func TestReportOfSelection(t *testing.T) {
	m := makeReport(t, fixture("v1-base", "checkpoint"), "--layers", "1", "--experts", "2-9", "--random", "1x8")
	assert.Equal(t, cli.ExitYes, m.status)
	assert.Contains(t, strings.Join(m.Checked, "\n"), "every value of 24 weights, ")
	assert.Contains(t, strings.Join(m.Checked, "\n"), "8 routed experts in 1 layer")
	assert.Contains(t, m.NotChecked, "the values of 162 weights that are not selected")
	assert.Nil(t, m.Stats)
	assert.NotContains(t, strings.Join(m.NotChecked, "\n"), "the odd ones")
	m = makeReport(t, fixture("v1-base", "checkpoint"), "--experts", "2,3")
	assert.Contains(t, m.NotChecked, "which experts are the odd ones in 3 layers: fewer than 8 are there or selected")
	assert.Contains(t, m.NotChecked, "whether the experts of 3 layers fit the rows of their routers: too few fit any row to tell")
	m = makeReport(t, fixture("v1-base", "checkpoint"), "--layers", "0", "--random", "1x8")
	assert.Subset(t, m.NotChecked, []string{"experts: no expert is selected", "routers: no router is selected", "routing: no decoder layer with a router is selected"})
	m = makeReport(t, fixture("torch-bin", "checkpoint"), "--layers", "0")
	assert.Contains(t, m.NotChecked, "checksums of archive entries: not all weights are selected")
	status, _, stderr := dsmoe(t.Context(), "inspect", "report", fixture("v1-base", "checkpoint"), "--layers", "9")
	assert.Equal(t, cli.ExitUnknown, status)
	assert.Contains(t, stderr, "layers 9: 9 not there: the checkpoint has 0-3")
}

// weightBytes lets f change the bytes of tensors of a checkpoint in dir.
func weightBytes(t *testing.T, dir string, f func(data func(tensor string) []byte)) {
	t.Helper()
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer c.Close()
	files := map[string][]byte{}
	f(func(tensor string) []byte {
		file, offset, err := c.Place(tensor)
		require.NoError(t, err)
		info, err := c.Tensor(tensor)
		require.NoError(t, err)
		path := filepath.Join(dir, c.Inventory.Files[file].Name)
		if files[path] == nil {
			files[path] = []byte(readFile(t, path))
		}
		return files[path][offset : offset+int64(len(info.Data))]
	})
	for path, data := range files {
		require.NoError(t, os.WriteFile(path, data, 0o666))
	}
}

// TestFailOn: a notice alone fails only where it is asked for.
func TestFailOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "odd")
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture("v1-base", "checkpoint"))))
	weightBytes(t, dir, func(data func(string) []byte) { clear(data("model.embed_tokens.weight")[2*64*40 : 2*64*44]) })
	for level, want := range map[string]int{"error": cli.ExitYes, "notice": cli.ExitNo, "none": cli.ExitYes} {
		status, printed, _ := dsmoe(t.Context(), "inspect", "report", "--fail-on", level, dir)
		assert.Equal(t, want, status, level)
		assert.Contains(t, printed, ": 1 notice\n  notice: zero-rows: model.embed_tokens.weight: 4 rows in blocks are zero, rows 40-43\n")
	}
}

// TestReportNamesPlantedFaults: a copy of an expert with its neurons in another order, a zeroed
// expert, a zeroed row of a router, a NaN in an expert and one beside them, a channel that is large.
func TestReportNamesPlantedFaults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture("v1-base", "checkpoint"))))
	const hidden, neurons, size = 64, 24, 2 // BF16
	weightBytes(t, dir, func(data func(string) []byte) {
		expert := func(layer, number string) string { return "model.layers." + layer + ".mlp.experts." + number }
		for _, p := range []string{".gate_proj.weight", ".up_proj.weight"} {
			from, to := data(expert("1", "2")+p), data(expert("1", "5")+p)
			for n := range neurons {
				copy(to[n*hidden*size:(n+1)*hidden*size], from[(neurons-1-n)*hidden*size:])
			}
		}
		from, to := data(expert("1", "2")+".down_proj.weight"), data(expert("1", "5")+".down_proj.weight")
		for at := 0; at < len(to); at += size {
			row, n := at/size/neurons, at/size%neurons
			copy(to[at:at+size], from[(row*neurons+neurons-1-n)*size:])
		}
		for _, p := range []string{".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"} {
			clear(data(expert("2", "3") + p))
		}
		clear(data("model.layers.1.mlp.gate.weight")[7*hidden*size : 8*hidden*size])
		binary.LittleEndian.PutUint16(data(expert("2", "6")+".up_proj.weight"), 0x7fc0)
		binary.LittleEndian.PutUint16(data("model.layers.3.self_attn.q_proj.weight"), 0x7fc0)
		up := data(expert("2", "9") + ".up_proj.weight")
		for at := 11*size + 1; at < len(up); at += hidden * size {
			up[at] += 2 // 16 times: 4 more in the exponent
		}
	})
	m := makeReport(t, dir, "--random", "1x8")
	assert.Equal(t, cli.ExitNo, m.status)
	assert.ElementsMatch(t, []string{"duplicate", "dead-row", "zeroed", "nan", "channel", "value"}, m.ids())
	for _, f := range m.Findings {
		require.NotNil(t, f.Layer)
		want := map[string][]int{"duplicate": {2, 5}, "dead-row": {7}, "zeroed": {3}, "nan": {6}, "channel": {9}, "value": {}}[f.ID]
		assert.Equal(t, want, f.Experts, f.ID)
		assert.Contains(t, m.words, f.Tensor)
		assert.Contains(t, m.words, f.Text)
	}
	assert.Contains(t, m.words, "5 ERRORS, 1 NOTICE")
	assert.Contains(t, m.words, "named by a finding")
	assert.Contains(t, m.page, `class="mark"`)
	assert.Contains(t, strings.Join(m.NotChecked, "\n"), "routing: ", "a forward pass of NaN has none")
	assert.Nil(t, m.Routing)

	status, text, _ := dsmoe(t.Context(), "inspect", "report", dir)
	assert.Equal(t, cli.ExitNo, status)
	assert.Contains(t, text, ": 5 errors, 1 notice\n")
	assert.Contains(t, text, "  error: duplicate: model.layers.1.mlp.experts.2: has the numbers of model.layers.1.mlp.experts.5")
}

// TestReportOfBrokenCheckpoint: what cannot be opened is a finding, and what was therefore not looked
// at is said.
func TestReportOfBrokenCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture("v1-base", "checkpoint"))))
	require.NoError(t, os.Remove(filepath.Join(dir, "model-00002-of-00003.safetensors")))
	m := makeReport(t, dir)
	assert.Equal(t, cli.ExitNo, m.status)
	assert.Contains(t, m.ids(), "broken")
	assert.Nil(t, m.Experts)
	assert.Contains(t, strings.Join(m.NotChecked, "\n"), "the numbers of tensors, experts and routers: ")
	assert.Contains(t, m.words, "model-00002-of-00003.safetensors")

	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture("v1-base", "checkpoint"))))
	config := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(readFile(t, config), `"moe_intermediate_size": 24`, `"moe_intermediate_size": 25`, 1)), 0o666))
	m = makeReport(t, dir)
	assert.Equal(t, cli.ExitNo, m.status)
	assert.Contains(t, m.words, "model.layers.{1..3}.mlp.experts.{0..15}.up_proj.weight (48 tensors)", "folded")
	assert.Len(t, m.Findings, 3*(16+1)*3)
}

// TestReportOfForeignNames: what names hold is text on the page.
func TestReportOfForeignNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "<script>&'\"")
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture("v1-base", "checkpoint"))))
	rename(t, dir, `"model.norm.weight"`, `"x]]><b>&'</svg>"`)
	m := makeReport(t, dir)
	assert.Equal(t, cli.ExitNo, m.status)
	assert.Contains(t, m.ids(), "unexpected")
	assert.Contains(t, m.words, `x]]><b>&'</svg>`)
	assert.NotContains(t, m.page, "<b>")
}

// TestReportOfConfig: there are the parameters, and no claim about weights.
func TestReportOfConfig(t *testing.T) {
	m := makeReport(t, fixture("states", "deepseek-v3", "config.json"))
	assert.Equal(t, cli.ExitYes, m.status)
	assert.Len(t, m.titles, 1)
	assert.Contains(t, m.words, "CONFIG ALONE")
	assert.NotContains(t, m.words, "NOTHING FOUND")
	assert.Equal(t, []string{"any weight: the path is that of a config alone"}, m.NotChecked)
	_, text, _ := dsmoe(t.Context(), "inspect", "report", fixture("states", "deepseek-v3", "config.json"))
	assert.NotContains(t, text, "nothing was found")
}

// TestReportAgainst: what a fine-tune changed stands in the text, on the page and in the document.
func TestReportAgainst(t *testing.T) {
	base, tuned := fixture("v1-base", "checkpoint"), filepath.Join(t.TempDir(), "tuned")
	require.NoError(t, os.CopyFS(tuned, os.DirFS(base)))
	weights := filepath.Join(tuned, "model-00001-of-00003.safetensors")
	data, err := os.ReadFile(weights)
	require.NoError(t, err)
	data[len(data)-2] ^= 0x40 // one number
	require.NoError(t, os.WriteFile(weights, data, 0o644))

	m := makeReport(t, tuned, "--against", base)
	assert.Contains(t, m.words, "1 of 186 weights changed, by ")
	assert.Contains(t, m.words, "1 OF 186 WEIGHTS CHANGED Nothing else was found.")
	assert.NotContains(t, m.words, "NOTHING FOUND")
	assert.Less(t, strings.Index(m.words, "rank of the changes: 1"), strings.Index(m.words, "headers of 3 files"), "what changed comes first")
	assert.Contains(t, m.page, `class="verdict unclear"`)
	assert.Contains(t, m.Checked, "186 weights against "+base+": relative changes and their ranks")
	_, text, _ := dsmoe(t.Context(), "inspect", "report", tuned, "--against", base)
	assert.Regexp(t, `^against .*: 1 of 186 weights changed, by [0-9.e-]+ of the base's RMS; rank of the changes: 1\n`, text)
	assert.Contains(t, text, tuned+": nothing else was found\n")
	_, text, _ = dsmoe(t.Context(), "inspect", "report", base, "--against", base)
	assert.Regexp(t, `^against .*: 186 weights compared, and all are equal\n`, text)
	assert.Contains(t, text, base+": nothing was found\n")
	m = makeReport(t, base, "--against", base)
	assert.Contains(t, m.words, "NOTHING FOUND")

	// With findings, and with weights that the base has not: both are said first.
	ties := fixture("v1-router-ties", "checkpoint")
	m = makeReport(t, ties, "--against", base)
	assert.Regexp(t, `[0-9]+ OF [0-9]+ WEIGHTS CHANGED, 1 ERROR`, m.words)
	short := filepath.Join(t.TempDir(), "short")
	_, _, stderr := dsmoe(t.Context(), "convert", base, short, "--layers", "0-1")
	require.Empty(t, stderr)
	m = makeReport(t, base, "--against", short)
	assert.Regexp(t, `[0-9]+ WEIGHTS NOT COMPARED WITH THE BASE Nothing else was found`, m.words)
	_, text, _ = dsmoe(t.Context(), "inspect", "report", base, "--against", short)
	assert.Regexp(t, `^against .*: [0-9]+ weights compared, and all are equal; [0-9]+ not compared\n`, text)
}

// TestReportRefuses what it cannot do before it reads anything, and leaves no page.
func TestReportRefuses(t *testing.T) {
	v1 := fixture("v1-base", "checkpoint")
	for want, args := range map[string][]string{
		"one of them":                         {v1, "--golden", "x", "--random", "1x1"},
		"--seed is that of --random":          {v1, "--seed", "1"},
		"a config alone has no weights":       {filepath.Join(v1, "config.json"), "--layers", "1"},
		"to compare or to route":              {filepath.Join(v1, "config.json"), "--against", v1},
		"nosuch: no such file or directory":   {v1, "--against", "nosuch"},
		"absent: no such file or directory":   {filepath.Join(v1, "absent"), "--against", v1},
		"not a golden pack":                   {v1, "--golden", v1},
		"no such file or directory":           {v1, "--tokens", filepath.Join(t.TempDir(), "gone.json")},
		"experts 99: 99 not there":            {v1, "--experts", "99"},
		"gone/x.html: no such file or direct": {v1, "--html", "gone/x.html"},
	} {
		html := filepath.Join(t.TempDir(), "x.html")
		status, stdout, stderr := dsmoe(t.Context(), slices.Concat([]string{"inspect", "report", "--html", html}, args)...)
		assert.Equal(t, cli.ExitUnknown, status, args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want, args)
		assert.Empty(t, entries(t, filepath.Dir(html)), args)
	}
}

// TestPlots: every command with --plot draws, whatever it prints, the same bytes each time.
func TestPlots(t *testing.T) {
	v3, dir := fixture("v3", "checkpoint"), t.TempDir()
	plots := map[string]string{
		"arch " + v3:               "parameters of each module, and how many of them a token uses",
		"arch --compare top2,fine": "sets of experts that a token can get",
		"mem " + v3:                "memory by context and batch",
		"tree " + v3:               "parameters by module",
		"stats " + v3:              "largest magnitude in each layer's tensors",
		"stats --by expert " + v3:  "standard deviation of each expert's weights",
		"stats --by module " + v3:  "standard deviation of the weights of each module",
		"experts " + v3:            "how like each expert is to the one that it is most like",
		"experts " + v3 + " --against " + fixture("v3", "checkpoint-fused"): "how far each expert is from its original",
		"router " + v3:                           "norm of each row of the routers",
		"routing " + fixture("v3", "golden-f32"): "load of each expert by 29 tokens",
		"routing --random 1x4 --layers 3 " + fixture("v1-base", "checkpoint"): "load of each expert by 4 tokens",
	}
	file, drawn := filepath.Join(dir, "x.svg"), map[string]bool{}
	for line, title := range plots {
		args := append([]string{"inspect"}, strings.Fields(line)...)
		_, without, _ := dsmoe(t.Context(), args...)
		status, stdout, stderr := dsmoe(t.Context(), append(args, "--plot", file)...)
		assert.Equal(t, cli.ExitYes, status, stderr)
		assert.Equal(t, without, stdout, line)
		first := readFile(t, file)
		titles, _ := drawings(t, first)
		of := strings.Fields(strings.TrimSuffix(line, " --against "+fixture("v3", "checkpoint-fused")))
		if path := of[len(of)-1]; path != "top2,fine" {
			title += ": " + path
		}
		assert.Equal(t, []string{title}, titles, line)
		dsmoe(t.Context(), append(args, "--json", "--plot", file)...)
		assert.Equal(t, first, readFile(t, file), line)
		drawn[args[1]] = true
	}
	for _, cmd := range everyCommand(newRoot()) {
		assert.Equal(t, drawn[cmd.Name()], cmd.Flags().Lookup(cli.PlotFlag) != nil, cmd.CommandPath())
	}
	assert.Equal(t, []string{"x.svg"}, entries(t, dir))
}

// TestPlotIsAllOrNothing: a command without an answer leaves what was there, and what cannot be written
// is told before the work.
func TestPlotIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.svg")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o666))
	status, stdout, _ := dsmoe(t.Context(), "inspect", "stats", fixture("v1-base", "checkpoint"), "--layers", "77", "--plot", file)
	assert.Equal(t, cli.ExitUnknown, status)
	assert.Empty(t, stdout)
	assert.Equal(t, "old", readFile(t, file))
	assert.Equal(t, []string{"x.svg"}, entries(t, dir))
	status, stdout, stderr := dsmoe(t.Context(), "inspect", "mem", fixture("v1-base", "checkpoint"), "--plot", filepath.Join(dir, "gone", "x.svg"))
	assert.Equal(t, cli.ExitUnknown, status)
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, "x.svg: no such file or directory")
	status, _, stderr = dsmoe(t.Context(), "inspect", "mem", fixture("v1-base", "checkpoint"), "--plot", "")
	assert.Equal(t, cli.ExitUnknown, status)
	assert.Contains(t, stderr, "not a regular file")
}
