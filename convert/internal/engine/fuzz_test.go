package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// journalOf opens a journal that holds data.
func journalOf(t testing.TB, path, data string) *journal {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
	f, err := (&disk.Disk{NoSync: true}).Open(path)
	require.NoError(t, err)
	return &journal{f: f}
}

// linesOf reads a journal.
func linesOf(t testing.TB, j *journal) (head *journalHead, records []record) {
	t.Helper()
	head, err := j.read(func(r record) { records = append(records, r) })
	require.NoError(t, err)
	return head, records
}

// sealed is the text of a journal of these lines.
func sealed(payloads ...string) (s string) {
	var b []byte
	for _, p := range payloads {
		b = seal(b, []byte(p))
	}
	return string(b)
}

const (
	someHead   = `{"format":"dsmoe.journal/3","plan":"p","key":"k"}`
	someRecord = `{"t":3,"n":4096,"losses":[{"overflow":1,"flushed":2}],"proof":{"hash":"blake3:00","compared":true}}`
)

// TestJournalLines: what a journal is trusted for are the whole lines before the first
// that is not one.
func TestJournalLines(t *testing.T) {
	t.Parallel()
	first, second := sealed(someHead), sealed(someRecord)
	for name, c := range map[string]struct {
		data    string
		head    bool
		records int
	}{
		"empty":              {"", false, 0},
		"head":               {first, true, 0},
		"lines":              {first + second + second, true, 2},
		"no line break":      {first + second[:len(second)-1], true, 0},
		"cut in the middle":  {first + second[:20], true, 0},
		"cut head":           {first[:20], false, 0},
		"checksum":           {first + "00000000" + second[8:] + second, true, 0},
		"head's checksum":    {"00000000" + first[8:] + second, false, 0},
		"another format":     {sealed(`{"format":"dsmoe.journal/1","plan":"p","key":"k"}`) + second, false, 0},
		"head is no object":  {sealed("[]") + second, false, 0},
		"line is no object":  {first + sealed("[]") + second, true, 0},
		"zeros behind":       {first + second + "\x00\x00\x00\n", true, 1},
		"empty line between": {first + "\n" + second, true, 0},
	} {
		j := journalOf(t, filepath.Join(t.TempDir(), "journal"), c.data)
		head, records := linesOf(t, j)
		require.Equal(t, c.head, head != nil, name)
		require.Len(t, records, c.records, name)
		for _, r := range records {
			require.Equal(t, record{Tensor: 3, Done: 4096, Lost: losses{{Overflow: 1, Flushed: 2}}, Proof: &proof{Hash: "blake3:00", Compared: true}}, r)
		}
		require.NoError(t, j.f.Close())
	}
}

// TestJournalIsOurs: a first line that a crash cut short is known by its begin; anything
// else is somebody's file.
func TestJournalIsOurs(t *testing.T) {
	t.Parallel()
	first := sealed(someHead)
	for data, want := range map[string]bool{
		"": true, "\x00\x00": true, first[:1]: true, first[:9]: true, first[:12]: true, first[:len(first)-1]: true, first: true,
		"my diary": false, "0123456": true, "01234567 {\"a\":1}": false, "01234567 []": false, "\x00x": false,
	} {
		j := journalOf(t, filepath.Join(t.TempDir(), "journal"), data)
		require.Equal(t, want, j.isOurs(), "%q", data)
		require.NoError(t, j.f.Close())
	}
}

// FuzzJournal: whatever a journal holds, a line that is added to what could be read is
// read behind that.
func FuzzJournal(f *testing.F) {
	first, second := sealed(someHead), sealed(someRecord)
	for _, data := range []string{"", first, first + second, first + second[:9], first + "x" + second, second, "00000000 {}\n"} {
		f.Add(data)
	}
	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, data string) {
		j := journalOf(t, path, data)
		defer j.f.Close()
		head, before := linesOf(t, j)
		require.LessOrEqual(t, j.end, int64(len(data)))
		if head == nil {
			return
		}
		added := record{Tensor: 7, Done: 1}
		require.NoError(t, j.append(added))
		again, after := linesOf(t, j)
		require.Equal(t, head, again)
		require.Equal(t, append(before, added), after)
	})
}

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
