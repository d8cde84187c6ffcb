package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/http2"
)

// What kube-apiserver sets: the windows take 99 % of its objects at once, on as many streams as it allows.
const (
	maxStreams   = 100
	streamWindow = 256 * 1024
)

func runServer(args []string) error {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	cert := flags.String("cert", "", "certificate, PEM")
	key := flags.String("key", "", "its key, PEM")
	goawayChance := flags.Float64("goaway-chance", 0, "share of the HTTP/2 requests that end their connection, as kube-apiserver's --goaway-chance")
	flags.Parse(args)

	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           goaway(*goawayChance, http.HandlerFunc(answer)),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
	}
	err = http2.ConfigureServer(server, &http2.Server{
		MaxConcurrentStreams:         maxStreams,
		MaxReadFrameSize:             streamWindow,
		MaxUploadBufferPerStream:     streamWindow,
		MaxUploadBufferPerConnection: streamWindow * maxStreams,
		IdleTimeout:                  90 * time.Second,
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		// Whoever started this holds the other end; it closes when that process ends, however it ends.
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return server.ServeTLS(listener, "", "")
}

// goaway asks some clients to go to another server: the HTTP/2 server makes a GOAWAY of this header.
func goaway(chance float64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && rand.Float64() < chance {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// answer gives what was asked for:
//
//	GET   ?size=N&seed=S   N bytes of the pattern
//	POST                   the body while it comes
//	PUT                    the body when all of it is there, as an apiserver does
func answer(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		size, errSize := strconv.Atoi(r.FormValue("size"))
		seed, errSeed := strconv.ParseUint(r.FormValue("seed"), 10, 64)
		if errSize != nil || errSeed != nil {
			http.Error(w, "GET needs size and seed", http.StatusBadRequest)
			return
		}
		body := make([]byte, size)
		pattern(body, seed)
		w.Write(body)
	case http.MethodPost:
		w.WriteHeader(http.StatusCreated)
		if _, err := io.Copy(w, r.Body); err != nil {
			// An answer that is cut short must not look complete.
			panic(http.ErrAbortHandler)
		}
	case http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Write(body)
	default:
		http.Error(w, "GET, POST or PUT", http.StatusMethodNotAllowed)
	}
}
