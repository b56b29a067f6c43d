package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// TestManifestIsStreamed: the tensors of a manifest are read one after the other, in their
// order, and none of them is kept.
func TestManifestIsStreamed(t *testing.T) {
	const tensors = 20_000
	var b strings.Builder
	b.WriteString(`{"format":"dsmoe.manifest/4","tensors":[`)
	for i := range tensors {
		fmt.Fprintf(&b, `%s{"name":"model.layers.%d.weight","shape":[3,4],"hash":%q,"sources":[{"tensor":"x"}]}`, strings.Repeat(",", min(i, 1)), i, strings.Repeat("0", 64))
	}
	dir := t.TempDir()
	fixture.Write(t, dir, plan.ManifestName, b.String()+"]}")
	size := b.Len()
	b.Reset()
	inUse := func() int {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	before, n := inUse(), 0
	m, err := manifest.Read(source.Disk(dir), plan.ManifestName, func(x *manifest.Tensor) error {
		require.Equal(t, fmt.Sprintf("model.layers.%d.weight", n), x.Name)
		if n++; n == tensors {
			require.Less(t, inUse()-before, size/4, "bytes in memory of a manifest of %d", size)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, tensors, n)
	require.Empty(t, m.Tensors)
}

// TestFinishedIsHeldAgainstThePlan: a finished output whose header changed, or that is
// shorter, or whose manifest lists other tensors, is not complete.
func TestFinishedIsHeldAgainstThePlan(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	const file = "model.safetensors"
	for want, spoil := range map[string]func(dst string){
		"the header changed":                  func(dst string) { fixture.Flip(t, filepath.Join(dst, file), 20) },
		"model.norm.weight: the data changed": func(dst string) { flipLast(t, filepath.Join(dst, file)) },
		"model.safetensors: has ":             func(dst string) { cutLast(t, filepath.Join(dst, file)) },
		"model.norm.weights: missing": func(dst string) {
			fixture.Replace(t, dst, plan.ManifestName, `"name":"model.norm.weight"`, `"name":"model.norm.weights"`)
		},
		"dsmoe.manifest.json: lists 0 tensors, not 21": func(dst string) { emptyList(t, dst) },
	} {
		dst := converted(t, src.Path, plan.Options{}, inMemory())
		spoil(dst)
		_, err := convert(t.Context(), t, dst, src, plan.Options{}, inMemory())
		require.ErrorContains(t, err, "was changed since", want)
		require.ErrorContains(t, err, want)
	}
}

func flipLast(t *testing.T, path string) {
	stat, err := os.Stat(path)
	require.NoError(t, err)
	fixture.Flip(t, path, stat.Size()-1)
}

func cutLast(t *testing.T, path string) {
	stat, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, stat.Size()-1))
}

// emptyList takes all tensors from a manifest.
func emptyList(t *testing.T, dst string) {
	head, _, found := strings.Cut(fixture.Read(t, dst, plan.ManifestName), `"tensors": [`)
	require.True(t, found)
	fixture.Write(t, dst, plan.ManifestName, head+`"tensors": []}`)
}

// withoutHash takes a manifest's hash of its own away.
func withoutHash(t *testing.T, dst string) {
	list, _, found := strings.Cut(fixture.Read(t, dst, plan.ManifestName), ",\n  \"manifest\"")
	require.True(t, found)
	fixture.Write(t, dst, plan.ManifestName, list+"\n}\n")
}

// edited replaces a text of a manifest once, and gives it the hash that it then has.
func edited(t *testing.T, dst, old, replacement string) {
	list, _, found := strings.Cut(fixture.Read(t, dst, plan.ManifestName), ",\n  \"manifest\"")
	require.True(t, found)
	require.Contains(t, list, old)
	list = strings.Replace(list, old, replacement, 1)
	fixture.Write(t, dst, plan.ManifestName, list+manifest.HashLine(digest.Of([]byte(list))))
}

// lineOf returns the line of a tensor in a manifest, with the comma behind it.
func lineOf(t *testing.T, dst, name string) string {
	for line := range strings.Lines(fixture.Read(t, dst, plan.ManifestName)) {
		if strings.Contains(line, `{"name":"`+name+`"`) {
			return line
		}
	}
	require.Fail(t, "not listed", name)
	return ""
}

// TestManifestIsNotTrusted: a manifest that lists less than the files hold, lists a tensor twice,
// or gives a copy another hash than its source is found out, even with the right hash of its
// own; with a wrong one every edit is.
func TestManifestIsNotTrusted(t *testing.T) {
	t.Parallel()
	made := converted(t, fixture.Path(t, "v1-dense/checkpoint"), plan.Options{}, inMemory())
	line := lineOf(t, made, "model.layers.0.mlp.up_proj.weight")
	hash := line[strings.Index(line, `"hash":"`):][:len(`"hash":"`)+len(digest.Of(nil))]
	for name, c := range map[string]struct {
		edit func(dst string)
		want []string
	}{
		"taken off": {func(dst string) { edited(t, dst, line, "") },
			[]string{"model.safetensors: holds 1 tensor that the manifest does not list"}},
		"twice": {func(dst string) { edited(t, dst, line, line+line) },
			[]string{"dsmoe.manifest.json: tensor model.layers.0.mlp.up_proj.weight: is listed twice"}},
		"another for it": {func(dst string) { edited(t, dst, line, lineOf(t, made, "model.layers.0.mlp.gate_proj.weight")) },
			[]string{"dsmoe.manifest.json: tensor model.layers.0.mlp.gate_proj.weight: is listed twice",
				"model.safetensors: holds 1 tensor that the manifest does not list"}},
		"hash of the source": {func(dst string) { edited(t, dst, hash, `"hash":"`+digest.Of(nil)) },
			[]string{"dsmoe.manifest.json: tensor model.layers.0.mlp.up_proj.weight: the manifest gives another hash to its source, which it copies"}},
		"without a hash": {func(dst string) { withoutHash(t, dst) }, []string{"dsmoe.manifest.json: was edited: "}},
		"any byte": {func(dst string) { fixture.Replace(t, dst, plan.ManifestName, `"verified": true`, `"verified":  true`) },
			[]string{"dsmoe.manifest.json: was edited: its hash is blake3:"}},
		"any byte of its hash": {func(dst string) { flipLast(t, filepath.Join(dst, plan.ManifestName)) }, nil},
	} {
		dst := filepath.Join(t.TempDir(), "out")
		require.NoError(t, os.CopyFS(dst, os.DirFS(made)))
		c.edit(dst)
		checked, err := Check(t.Context(), dst, inMemory())
		if c.want == nil {
			require.ErrorContains(t, err, "not a manifest", name)
			continue
		}
		require.NoError(t, err, name)
		require.Len(t, checked.Problems, len(c.want), name)
		for i, want := range c.want {
			require.Contains(t, checked.Problems[i].String(), want, name)
		}
		_, err = convert(t.Context(), t, dst, open(t, fixture.Path(t, "v1-dense/checkpoint")), plan.Options{}, inMemory())
		require.ErrorContains(t, err, "was changed since", name)
	}
}

// TestListedApart: a tensor that is listed among those of another file is a problem, and so is the one behind it.
func TestListedApart(t *testing.T) {
	t.Parallel()
	dst := converted(t, fixture.Path(t, "v1-dense/checkpoint"), plan.Options{MaxShardBytes: 100_000}, inMemory())
	moved, before := lineOf(t, dst, "model.embed_tokens.weight"), lineOf(t, dst, "lm_head.weight")
	edited(t, dst, moved, "")
	edited(t, dst, before, before+moved)
	checked, err := Check(t.Context(), dst, inMemory())
	require.NoError(t, err)
	require.Len(t, checked.Problems, 2)
	for i, name := range []string{"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"} {
		require.Contains(t, checked.Problems[i].String(), "tensor "+name+": is listed apart from other tensors of its file")
	}
}

// TestEmptyListMatchesNothing: a manifest that lists nothing does not match an empty directory.
func TestEmptyListMatchesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list := `{"format":"` + manifest.Format + `","files":[],"tensors":[]`
	fixture.Write(t, dir, plan.ManifestName, list+manifest.HashLine(digest.Of([]byte(list))))
	checked, err := Check(t.Context(), dir, inMemory())
	require.NoError(t, err)
	require.Equal(t, []problem.Problem{{File: plan.ManifestName, Cause: "lists no tensor"}}, checked.Problems)
}

// TestRounds: a tensor was rounded if its losses say so.
func TestRounds(t *testing.T) {
	of := func(to tensor.DType, lost *tensor.Loss) *manifest.Tensor {
		return &manifest.Tensor{DType: to, Operations: []string{"stack-experts", "cast"}, Lost: lost}
	}
	none, all, denormals := tensor.Rounding{}, tensor.Rounding{By: "cast"}, tensor.Rounding{By: "cast", Denormals: true}
	for _, c := range []struct {
		tensor *manifest.Tensor
		want   tensor.Rounding
	}{
		{of(tensor.F16, nil), none},
		{of(tensor.F16, &tensor.Loss{Denormal: 1}), denormals},
		{of(tensor.F16, &tensor.Loss{Flushed: 1}), denormals},
		{of(tensor.F16, &tensor.Loss{Rounded: 1, Denormal: 1}), all},
		{of(tensor.F16, &tensor.Loss{Overflow: 1, NotFinite: 1}), none},
		{of(tensor.BF16, nil), none},
		{of(tensor.F32, &tensor.Loss{Rounded: 1}), none},
		{of(tensor.Q8_0, &tensor.Loss{Rounded: 1}), all},
		{of(tensor.Q8_0, &tensor.Loss{Flushed: 32}), all},
	} {
		require.Equal(t, c.want, c.tensor.Rounds(), "%+v", c.tensor)
	}
}
