package com.example;

import java.net.ConnectException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Deserializer;

/** A deserializer as a user has it: the meters of own_decoders.py; nothing for device 0. Value "o" asks for too much memory, "c" for a service, "m" for a class. */
public final class MeterDeserializer implements Deserializer {
    private String topics;

    public void configure(Map config, boolean isKey) {
        topics = (String) config.get("meter.topics");
        if (topics == null) {
            throw new IllegalArgumentException("meter.topics is not set");
        }
    }

    public Object deserialize(String topic, byte[] value) {
        if (!topic.startsWith(topics)) {
            throw new SerializationException("no topic of meters: " + topic);
        }
        if (value.length == 1 && value[0] == 'o') {
            return new byte[Integer.MAX_VALUE];
        }
        if (value.length == 1 && value[0] == 'm') {
            throw new OutOfMemoryError("Metaspace");
        }
        if (value.length == 1 && value[0] == 'c') {
            throw new SerializationException("no schema", new ConnectException("Connection refused"));
        }
        ByteBuffer read = ByteBuffer.wrap(value);
        Map message = new HashMap();
        message.put("device", Long.valueOf(read.getInt() & 0xffffffffL));
        message.put("reading", Double.valueOf(read.getDouble()));
        byte[] unit = new byte[read.get()];
        read.get(unit);
        try {
            message.put("unit", Charset.forName("UTF-8").newDecoder().decode(ByteBuffer.wrap(unit)).toString());
        } catch (CharacterCodingException thrown) {
            throw new SerializationException("a unit that is not UTF-8");
        }
        return ((Long) message.get("device")).longValue() == 0 ? null : message;
    }
}
