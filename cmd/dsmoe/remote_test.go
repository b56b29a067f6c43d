package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/remote"
	"dsmoe/convert/remote/remotetest"
)

// TestHideSecrets: of URLs in arguments no password and no signature is printed, and they are used.
func TestHideSecrets(t *testing.T) {
	fixture, err := filepath.Abs(filepath.Join("..", "..", "fixtures", "v1-base", "checkpoint"))
	require.NoError(t, err)
	files := http.FileServer(http.Dir(fixture))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, word, _ := r.BasicAuth(); word != "word" || r.URL.RawQuery != "signature=1" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		files.ServeHTTP(w, r)
	}))
	defer s.Close()
	url := strings.Replace(s.URL, "//", "//me:word@", 1) + "/"
	for _, args := range [][]string{{"inspect", "--json", url + "?signature=1"}, {"inspect", "arch", url + "?signature=1"},
		{"inspect", "mem", url + "?signature=1"}, {"inspect", "audit", url + "none?signature=1"}, {"inspect", url + "?signature=2"}} {
		refused := strings.Contains(args[len(args)-1], "none") || strings.HasSuffix(args[len(args)-1], "2")
		var out, errs bytes.Buffer
		status := run(t.Context(), remote.NewClient(), args, &out, &errs)
		require.Equal(t, refused, status == cli.ExitUnknown, errs.String())
		for _, secret := range []string{"word", "signature", "me:"} {
			require.NotContains(t, out.String()+errs.String(), secret)
		}
		require.True(t, args[1] == "mem" || strings.Contains(out.String()+errs.String(), s.URL))
	}
}

// TestInterruptedRequests: an interruption ends the tries to reach a server.
func TestInterruptedRequests(t *testing.T) {
	h := remotetest.Start(t, nil)
	h.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs bytes.Buffer
	require.Equal(t, cli.ExitInterrupted, run(ctx, h.Client, []string{"inspect", "hf://org/model"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "dsmoe: interrupted\n")
}

// TestWaiting: what a client says while a server does not answer goes to stderr, escaped.
func TestWaiting(t *testing.T) {
	var errs bytes.Buffer
	printWaiting(&errs, "hf://org/model: the server answers \"503 \x1b[2J\"; try 6 of 12 in 9s")
	require.Equal(t, "note: hf://org/model: the server answers \"503 \\x1b[2J\"; try 6 of 12 in 9s\n", errs.String())
}

// TestVerifyHub: a verification of a model of the hub, with 30 % of the requests failing or breaking off, gives
// the document of one on the disk, but for paths, times and samples.
func TestVerifyHub(t *testing.T) {
	fixture, err := filepath.Abs(filepath.Join("..", "..", "fixtures", "v1-base"))
	require.NoError(t, err)
	h := remotetest.Start(t, map[string]string{"model": filepath.Join(fixture, "checkpoint")}).Fail(30)
	report := func(path string) map[string]any {
		var out bytes.Buffer
		status := run(t.Context(), h.Client, []string{"verify", "--json", "--hash", path, filepath.Join(fixture, "golden-f32")}, &out, io.Discard)
		require.Equal(t, cli.ExitYes, status)
		var document map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &document))
		c := document["checkpoint"].(map[string]any)
		if path != filepath.Join(fixture, "checkpoint") {
			require.Equal(t, path+"@"+remotetest.Commit, c["path"])
		}
		delete(c, "path")
		delete(c, "mapped_bytes")
		delete(c, "samples") // only of the disk
		delete(document, "duration_s")
		return document
	}
	require.Equal(t, report(filepath.Join(fixture, "checkpoint")), report("hf://org/model"))
}
