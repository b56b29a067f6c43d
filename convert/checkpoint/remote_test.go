package checkpoint

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/remote/remotetest"
	"dsmoe/text/problem"
)

// TestRemote: a model of the hub, and one of a web server, are what they are on the disk, with 30 % of the
// requests failing or breaking off. Headers alone are read until a weight is.
func TestRemote(t *testing.T) {
	for _, name := range []string{"v3-fp8", "v1-base"} {
		path := fixture.Path(t, name+"/checkpoint")
		h := remotetest.Start(t, map[string]string{"model": path})
		h.Fail(30)
		want, err := Open(path)
		require.NoError(t, err)
		for _, url := range []string{"hf://org/model", "hf://org/model@" + remotetest.Commit} {
			got, err := Opener{h.Client}.Open(url)
			require.NoError(t, err)
			require.Equal(t, "hf://org/model@"+remotetest.Commit, got.Path)
			requireEqual(t, want, got)
		}
		for _, r := range h.Requests() {
			require.False(t, strings.Contains(r, "resolve/main"), r)
		}
		require.Empty(t, h.Tokens)
		require.NoError(t, want.Close())
	}
}

// TestShardsOfWebServers: at a server's root, listed and not, the index says which shards there are. One that the
// server lacks is missing.
func TestShardsOfWebServers(t *testing.T) {
	path := fixture.Clone(t, fixture.Path(t, "v1-base/checkpoint"))
	files, lists := http.FileServer(http.Dir(path)), true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && !lists {
			http.NotFound(w, r)
			return
		}
		files.ServeHTTP(w, r)
	}))
	defer s.Close()
	want, err := Open(path)
	require.NoError(t, err)
	for _, lists = range []bool{true, false} {
		got, err := Open(s.URL)
		require.NoError(t, err)
		requireEqual(t, want, got)
	}
	require.NoError(t, want.Close())
	require.NoError(t, os.Remove(filepath.Join(path, shard1)))
	for _, lists = range []bool{true, false} {
		_, err := Open(s.URL)
		require.ErrorContains(t, err, shard1+": missing, and model.safetensors.index.json names it")
	}
}

// requireEqual compares what two checkpoints hold.
func requireEqual(t *testing.T, want, got *Checkpoint) {
	t.Helper()
	require.Equal(t, want.Inventory.Files, got.Inventory.Files)
	require.Equal(t, want.Inventory.Index, got.Inventory.Index)
	require.Greater(t, got.Memory(), want.Memory())
	for info := range want.Tensors() {
		require.False(t, got.HasView(info.Name))
		a, b := make([]byte, info.Bytes()), make([]byte, info.Bytes())
		require.NoError(t, want.ReadAt(info.Name, a, 0))
		require.NoError(t, got.ReadAt(info.Name, b, 0))
		require.Equal(t, a, b, info.Name)
	}
}

// TestWithheld: a file that the server does not give is an error, and no problem of the checkpoint; one that it
// does not have is a problem.
func TestWithheld(t *testing.T) {
	files := http.FileServer(http.Dir(fixture.Path(t, "v1-base/checkpoint")))
	for _, withheld := range []string{"/" + ConfigName, "/model.safetensors.index.json", "/" + shard2} {
		status := http.StatusForbidden
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == withheld {
				w.WriteHeader(status)
				return
			}
			files.ServeHTTP(w, r)
		}))
		defer s.Close()
		_, err := Opener{}.Examine(s.URL + "/")
		var bad *problem.Error
		require.ErrorAs(t, err, &bad, withheld)
		require.Len(t, bad.Problems, 1, withheld)
		require.ErrorContains(t, err, "403 Forbidden")
		status = http.StatusNotFound
		c, err := Opener{}.Examine(s.URL + "/")
		require.NoError(t, err, withheld)
		require.Contains(t, c.Inventory.Problems[0].Cause, "no such file on the server")
		require.NoError(t, c.Close())
	}
}

// TestNeededOfTheHub: of files that hold nothing needed not a byte is read.
func TestNeededOfTheHub(t *testing.T) {
	path := fixture.Path(t, "v1-base/checkpoint")
	h := remotetest.Start(t, map[string]string{"model": path})
	c, err := Opener{h.Client}.OpenPart("hf://org/model", needs(embed))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.ReadAt(embed, make([]byte, 128), 0))
	read := strings.Join(h.Requests(), "\n")
	require.Contains(t, read, shard1)
	require.NotContains(t, read, shard2)
	require.NotContains(t, read, shard3)
	require.Equal(t, []string{shard2, shard3}, []string{c.Inventory.Unread[0].Name, c.Inventory.Unread[1].Name})
	require.ErrorContains(t, c.ReadAt(lmHead, make([]byte, 2), 0), "is in "+shard3+", which was not read")
}
