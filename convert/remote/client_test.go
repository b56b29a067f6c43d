package remote

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFirstTries: before any server answered, fewer tries are made.
func TestFirstTries(t *testing.T) {
	c := NewClient()
	c.Wait = time.Millisecond
	broken := &failure{cause: "cannot be reached"}
	require.NoError(t, c.pause("x", broken, firstTries-1, time.Now()))
	require.ErrorContains(t, c.pause("x", broken, firstTries, time.Now()), "cannot be reached, after 5 tries")
	c.answered.Store(true)
	require.NoError(t, c.pause("x", broken, firstTries, time.Now()))
	require.ErrorContains(t, c.pause("x", broken, maxTries, time.Now()), "after 12 tries")
}

// TestIdentities: what says nothing about a file's bytes is no identity.
func TestIdentities(t *testing.T) {
	const year = "Mon, 23 Nov 2026 15:00:00 GMT"
	for _, c := range [][3]string{{`"a"`, year, `"a"`}, {`W/"a"`, year, `"a"`}, {`""`, year, year}, {`W/""`, "", ""}, {"", "", ""},
		{"", "Thu, 01 Jan 1970 00:00:01 GMT", ""}, {"", "Tue, 01 Jan 1980 00:00:00 GMT", ""}} {
		require.Equal(t, c[2], identityOf(http.Header{"Etag": {c[0]}, "Last-Modified": {c[1]}}), c)
	}
}

// TestWithoutSecrets: messages of others name URLs without users and queries.
func TestWithoutSecrets(t *testing.T) {
	require.Equal(t, `invalid proxy "http://host:zz": at https://host/a`,
		withoutSecrets(`invalid proxy "http://me:word@host:zz": at https://host/a?signature=1`))
}

// TestLentBodies: the bytes that were sent are the caller's when the call returns, even of a request that was refused before
// it was read.
func TestLentBodies(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secretsecret")
	t.Setenv("AWS_ENDPOINT_URL", "http://localhost:1")
	s, err := NewClient().OpenStore("s3://models")
	require.NoError(t, err)
	var bodies []io.ReadCloser
	s.c.http.Transport = transport(func(r *http.Request) (*http.Response, error) {
		again, err := r.GetBody()
		require.NoError(t, err)
		start := make([]byte, 3)
		for _, body := range []io.ReadCloser{r.Body, again} {
			_, err := io.ReadFull(body, start)
			require.NoError(t, err)
			require.Equal(t, "one", string(start))
			bodies = append(bodies, body)
		}
		return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
	})
	require.Error(t, s.Put("x", []byte("one two")))
	require.Len(t, bodies, 2)
	for _, body := range bodies {
		rest, err := io.ReadAll(body)
		require.NoError(t, err)
		require.Empty(t, rest)
	}
}

// transport answers requests by a function.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
