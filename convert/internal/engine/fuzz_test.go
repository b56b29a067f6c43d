package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// TestManifestRefusals: what is no manifest is an error on one line that names the file.
func TestManifestRefusals(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":                                   "not a manifest",
		`{"tensors":3}`:                      "not a manifest",
		`{"tensors":[3]}`:                    "not a manifest",
		`{"tensors":[{}}`:                    "not a manifest",
		"{":                                  "not a manifest",
		"[]":                                 "not a manifest",
		`{"format":"dsmoe.manifest/4"}{}`:    "not a manifest",
		`{"format":"a","format":"b"}`:        "not a manifest",
		`{"format":3}`:                       "not a manifest",
		`{}`:                                 `format "" is not dsmoe.manifest/4`,
		`{"format":"dsmoe.manifest/1"}`:      "format dsmoe.manifest/1 is not dsmoe.manifest/4",
		`{"format":"a\u001b[2J\nb"}`:         `format "a\x1b[2J\nb" is not`,
		manifestWith("files", "../model.x"):  "file name ../model.x leads out of the directory",
		manifestWith("files", "/etc/passwd"): "leads out of the directory",
		manifestWith("others", "sub/config.json"): "leads out of the directory",
		manifestWith("others", ".."):              "leads out of the directory",
		manifestWith("others", ""):                "leads out of the directory",
	} {
		dir := t.TempDir()
		fixture.Write(t, dir, plan.ManifestName, content)
		_, err := Check(t.Context(), dir, Settings{})
		require.ErrorContains(t, err, plan.ManifestName)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
}

// manifestWith is a manifest with one file.
func manifestWith(list, file string) string {
	return `{"format":"dsmoe.manifest/4","` + list + `":[{"file":"` + file + `"}]}`
}

// FuzzManifest: whatever a manifest says, it is checked to an end: an error on one line,
// or problems that can be printed.
func FuzzManifest(f *testing.F) {
	dir := converted(f, fixture.Path(f, "v1-dense/checkpoint"), plan.Options{}, inMemory())
	manifest := fixture.Read(f, dir, plan.ManifestName)
	for _, data := range []string{"", "{}", `{"format":"dsmoe.manifest/4"}`, manifest, manifestWith("files", "config.json"), manifestWith("others", "model.safetensors"),
		`{"format":"dsmoe.manifest/4","files":[{"file":"model.safetensors","size":1}],"tensors":[{"name":"lm_head.weight","dtype":"BF16","shape":[-1],"file":"model.safetensors"}]}`} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data string) {
		fixture.Write(t, dir, plan.ManifestName, data)
		checked, err := Check(t.Context(), dir, Settings{})
		if err != nil {
			require.True(t, text.Printable(err.Error()), "%q", err.Error())
			return
		}
		for _, p := range checked.Problems {
			require.True(t, text.Printable(p.String()), "%q", p.String())
		}
	})
}
